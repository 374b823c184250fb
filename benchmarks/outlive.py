"""The cache outlives its server: servers are killed and replaced under load, pages are compared.

docs/failures.md says what a client sees then. The last line is one JSON object; the exit status
is zero if nothing was wrong.
"""

import json
import secrets
import sys
from typing import Annotated

import typer

from support import machine
from support.succession.mutants import MUTANTS
from support.succession.rounds import Plan, failed, run


def known_mutant(name: str) -> str:
    """Returns a name of MUTANTS, or nothing."""
    if name and name not in MUTANTS:
        raise typer.BadParameter(f"is none of {', '.join(MUTANTS)}")
    return name


def main(  # noqa: PLR0913  # options
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, last.")] = False,
    quick: Annotated[bool, typer.Option(help="Three kills, one replacement, few pages.")] = False,
    kills: Annotated[int, typer.Option(min=0, help="Servers to kill.")] = 100,
    replacements: Annotated[int, typer.Option(min=0, help="Servers to replace.")] = 20,
    stops: Annotated[int, typer.Option(min=0, help="Servers to stop beside another one.")] = 3,
    pages: Annotated[int, typer.Option(min=1_000, help="Pages that the store can have.")] = 20_000,
    clients: Annotated[int, typer.Option(min=1, help="Client processes under load.")] = 4,
    seed: Annotated[int, typer.Option(help="Of all choices; zero: another one each time.")] = 0,
    holder: Annotated[bool, typer.Option(help="Whether a holder keeps the memory.")] = True,
    mutant: Annotated[
        str, typer.Option(callback=known_mutant, help="A fault in the server itself.")
    ] = "",
) -> None:
    """Kills and replaces servers under load, and checks all pages that they acknowledged."""
    before = machine.load_average()
    plan = Plan(
        kills=3 if quick else kills,
        replacements=1 if quick else replacements,
        stops=1 if quick else stops,
        pages=2_000 if quick else pages,
        clients=clients,
        seed=seed or secrets.randbits(31),
        holder=holder,
        mutant=mutant,
    )
    figures = run(plan)
    document = {
        **figures,
        "pages": plan.pages,
        "clients": plan.clients,
        "seed": plan.seed,
        "load_average": {"before": before, "after": machine.load_average()},
        "machine": machine.machine_facts(),
    }
    if as_json:
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        for name, value in figures.items():
            sys.stdout.write(f"{name:24} {value}\n")
    raise typer.Exit(1 if failed(figures) else 0)


if __name__ == "__main__":
    typer.run(main)
