"""Does the store survive? Workers and server are killed, stopped and cut off; every page is read.

docs/chaos.md says what happens in a run and how to read its result. The last line is one
JSON object; the exit status is zero where nothing was found wrong.
"""

import json
import secrets
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from chaos.mutants import MUTANTS
from chaos.run import POOL_SLOTS, Plan, Run
from chaos.schedule import kinds_of
from chaos.worker import LAYOUT
from support import machine

ENGINES = ("", "valkey")
# Loads from an engine evict no page that was used in the last minute, so some have to be free.
HOST_SLOTS = 8_192
# Workers with a fault, and engines: of a lone host, and of each of several.
WORKERS, ENGINE_COUNT = (6, 3), (2, 1)


def known_mutant(name: str) -> str:
    """Returns a name of MUTANTS, or nothing."""
    if name and name not in MUTANTS:
        raise typer.BadParameter(f"is none of {', '.join(MUTANTS)}")
    return name


def known_faults(text: str) -> str:
    """Returns what ``kinds_of`` takes."""
    try:
        kinds_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def known_engine(name: str) -> str:
    """Returns the name of an engine that runs here, or nothing."""
    if name not in ENGINES:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(filter(None, ENGINES))}")
    return name


def main(  # noqa: PLR0913  # options
    *,
    minutes: Annotated[float, typer.Option(min=0.02, help="How long things happen.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, last.")] = False,
    quick: Annotated[bool, typer.Option(help="A quarter of a minute.")] = False,
    seed: Annotated[int, typer.Option(help="Of all choices; zero: another one each time.")] = 0,
    trace: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Requests in the Mooncake format."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Light workers with a fault each: 6, or 3 a host."),
    ] = None,
    steady: Annotated[int, typer.Option(min=1, help="Light workers without.")] = 2,
    engines: Annotated[
        int | None,
        typer.Option(min=0, help="Engines with a model: 2, or 1 a host."),
    ] = None,
    corrupt: Annotated[int, typer.Option(min=0, help="Cached pages to flip a byte of.")] = 0,
    faults: Annotated[
        str,
        typer.Option(callback=known_faults, help="Only these: POINT=ACTION, with commas between."),
    ] = "",
    tier1_bytes: Annotated[
        int,
        typer.Option(help="Memory of tier 1; pages have 4 KiB. Zero: 128, or 8,192 with --hosts."),
    ] = 0,
    tier2_bytes: Annotated[int, typer.Option(min=0, help="Memory of tier 2; zero: none.")] = 0,
    tier3_bytes: Annotated[
        int, typer.Option(min=0, help="The file of tier 3, which all servers have; zero: none.")
    ] = 0,
    outlive: Annotated[
        bool, typer.Option(help="Keep the memory in a holder, and kill it too.")
    ] = False,
    hosts: Annotated[int, typer.Option(min=1, help="Stores with workers of their own.")] = 1,
    remote: Annotated[
        str,
        typer.Option(callback=known_engine, help="The engine that all hosts share: valkey."),
    ] = "",
    server_faults: Annotated[bool, typer.Option(help="Whether the server has faults.")] = True,
    mutant: Annotated[
        str, typer.Option(callback=known_mutant, help="A fault in the server itself.")
    ] = "",
    until_all: Annotated[
        bool, typer.Option(help="Go on, if need be, until everything has happened once.")
    ] = False,
    until_wrong: Annotated[bool, typer.Option(help="End as soon as something is wrong.")] = False,
    keep: Annotated[bool, typer.Option(help="Keep the logs where nothing is wrong too.")] = False,
) -> None:
    """Kills, stop and cut off workers and server under load; checks every page and every answer."""
    # As Ctrl-C: everything that was started is stopped on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if (hosts > 1) != bool(remote):
        raise typer.BadParameter("several hosts share an engine: give both --hosts and --remote")
    if hosts > 1 and outlive:
        raise typer.BadParameter("several hosts have no holder here: leave --outlive out")
    plan = Plan(
        minutes=0.25 if quick else minutes,
        seed=seed or secrets.randbits(31),
        workers=WORKERS[hosts > 1] if workers is None else workers,
        steady=steady,
        engines=ENGINE_COUNT[hosts > 1] if engines is None else engines,
        corrupt=corrupt,
        trace=trace,
        faults=faults,
        server_faults=server_faults,
        mutant=mutant,
        until_all=until_all,
        until_wrong=until_wrong,
        tier1_bytes=tier1_bytes or (HOST_SLOTS if hosts > 1 else POOL_SLOTS) * LAYOUT.page_bytes,
        tier2_bytes=tier2_bytes,
        tier3_bytes=tier3_bytes,
        outlive=outlive,
        hosts=hosts,
        remote=remote,
    )
    sys.stderr.write(f"seed {plan.seed}\n")
    folder = Path(tempfile.mkdtemp(prefix="kvstore-chaos-"))
    before = machine.load_average()
    run = Run(plan, folder)
    figures = run.go() | {
        "minutes": plan.minutes,
        "seed": plan.seed,
        "load_average": before,
        **machine.machine_facts(),
    }
    if looks := run.tally["remote_looked_at"]:
        figures["remote_open_share"] = round(run.tally["remote_open"] / looks, 3)
    clean = run.tally.clean
    if clean and not keep:
        shutil.rmtree(folder)
    else:
        sys.stderr.write(f"logs in {folder}\n")
    if as_json:
        sys.stdout.write(json.dumps(figures) + "\n")
    else:
        for name, value in figures.items():
            if not isinstance(value, dict):
                sys.stdout.write(f"{name:24} {value}\n")
    raise typer.Exit(0 if clean else 1)


if __name__ == "__main__":
    typer.run(main)
