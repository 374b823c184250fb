"""Tier 3 after kill -9: a real server is killed in the middle of its writes.

Its successors have to serve all acknowledged pages with the written bytes, and nothing that was
removed. The last line is one JSON object.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from support import machine
from support.recovery.kills import run_kills

LEAST_FRACTION = 0.95


def main(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end.")
    ] = False,
    quick: Annotated[bool, typer.Option(help="Kill three servers.")] = False,
    kills: Annotated[int, typer.Option(min=1, help="Number of kills.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of the times of the kills.")] = 1,
    folder: Annotated[
        Path, typer.Option(help="Folder of the slab, on a disk like the one to be used.")
    ] = Path(),
) -> None:
    """Kills servers in the middle of their writes, and checks their successors' pages."""
    before = machine.load_average()
    with tempfile.TemporaryDirectory(dir=folder, prefix="recovery-") as name:
        found = run_kills(Path(name), 3 if quick else kills, seed)
    document = {
        **found,
        "seed": seed,
        "load_average": {"before": before, "after": machine.load_average()},
        "machine": machine.machine_facts(),
    }
    if as_json:
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        for key, value in found.items():
            sys.stdout.write(f"{key:24} {value}\n")
    good = found["served_fraction"] >= LEAST_FRACTION
    if not good or found["wrong_pages"] or found["returned_pages"]:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
