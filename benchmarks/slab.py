"""Tier 3's slab file: its speed, its time to reopen, and its pages after kill -9.

Speeds are measured beside plain O_DIRECT copies of as many bytes, in turns in one run.
"""

import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
from rich.table import Table

from support import machine
from support.slab.kills import run_kills
from support.slab.restart import measure_restart
from support.slab.speed import measure_speed
from support.table_console import table_console

PAGE_KIB = (64, 288, 1024)
# The least share of acknowledged pages that has to survive all kills.
LEAST_SHARE = 0.95


def show(document: dict[str, Any]) -> None:
    """Prints tables for people."""
    table = Table("page, KiB", "", "GB/s", "plain copy, GB/s", "ratio", "processor, us a page")
    for speed in document["speeds"]:
        for name in ("write", "read"):
            figures = [speed[key] for key in (f"{name}_gb_per_s", f"plain_{name}_gb_per_s")]
            figures += [speed[f"{name}_to_plain"], speed[f"{name}_processor_us"]]
            table.add_row(str(speed["page_bytes"] >> 10), name, *map(str, figures))
    console = table_console()
    console.print(table)
    for part in ("restart", "kills"):
        if document[part]:
            console.print(part, document[part])


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
    quick: Annotated[bool, typer.Option(help="Take half a minute, with rougher figures.")] = False,
    kills: Annotated[int, typer.Option(help="Number of kills; 50, or 5 with --quick.")] = -1,
    rounds: Annotated[int, typer.Option(help="Rounds of each measurement.")] = 0,
    mib: Annotated[int, typer.Option(help="MiB of pages of each size.")] = 0,
    restart_pages: Annotated[int, typer.Option(help="Pages of the reopened slab.")] = -1,
    page_kib: Annotated[list[int], typer.Option(min=4)] = list(PAGE_KIB),  # noqa: B006
    seed: Annotated[int, typer.Option(help="Seed of the times of the kills.")] = 1,
    folder: Annotated[
        Path, typer.Option(help="Folder of the files, on the disk to measure.")
    ] = Path(),
) -> None:
    """Measures a slab file on the disk of a folder, and kills its writers."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    before = machine.load_average()
    kills = kills if kills >= 0 else 5 if quick else 50
    rounds = rounds or (3 if quick else 9)
    size = (mib or (128 if quick else 512)) << 20
    pages = restart_pages if restart_pages >= 0 else 20_000 if quick else 100_000
    with tempfile.TemporaryDirectory(dir=folder, prefix="slab-") as name:
        place = Path(name)
        speeds = [measure_speed(place, each << 10, size, rounds) for each in page_kib]
        restart = measure_restart(place, pages, rounds) if pages else None
        killed = run_kills(place, kills, seed) if kills else None
    document = {
        "benchmark": "slab",
        "machine": machine.machine_facts(),
        "load_average": {"before": before, "after": machine.load_average()},
        "method": {"rounds": rounds, "bytes": size, "threads": 4},
        "speeds": speeds,
        "restart": restart,
        "kills": killed,
    }
    if as_json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        show(document)
    if killed and (
        killed["wrong_pages"]
        or killed["returned_pages"]
        or killed["share_of_acknowledged"] < LEAST_SHARE
    ):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
