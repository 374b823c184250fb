"""Memory of a store at its start: seconds a GiB to a ready extent, and calls beside growth.

Compares them with a plain memset of as much memory, in turns in one run. README.md in this folder
says how to read the result.
"""

import json
import logging
import sys
from typing import Annotated, Any

import structlog
import typer
from rich.table import Table

from kvstore.storage.host import machine_limits as memory
from support import machine
from support.start.extents import measure_extents
from support.start.server import measure_servers
from support.start.ways import thread_counts, ways
from support.table_console import table_console

GIB = 1 << 30
# A multiple of the measured memory that must stay free for other programs.
SPARE = 2
FIGURES = ("ready", "touch", "worker")


def show(document: dict[str, Any]) -> None:
    """Prints tables for people."""
    console = table_console()
    table = Table("extent, s a GiB", "ready", "first touch", "a worker's", "both to memset again")
    for name, way in document["extents"]["ways"].items():
        figures = [f"{way[key]['median']}, least {way[key]['least']}" for key in FIGURES]
        table.add_row(name, *figures, str(way["ready_and_touch_to_memset_again"]))
    for name, figure in document["extents"]["plain"].items():
        table.add_row(name, "", f"{figure['median']}, least {figure['least']}", "", "")
    console.print(table)
    table = Table("server", "SERVING, s", "opened, s", "grown, s", "match quiet, ms", "growing, ms")
    for name, way in document["servers"].items():
        spreads = [
            f"{way[key].get('p50_ms')} p99 {way[key].get('p99_ms')} max {way[key].get('max_ms')}"
            for key in ("quiet", "growing")
        ]
        row = [str(way[key]) for key in ("serving_s", "opened_s", "grown_s")]
        table.add_row(name, *row, *spreads)
    console.print(table)
    for each in document["left_out"]:
        console.print("left out:", each)


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
    quick: Annotated[bool, typer.Option(help="Take half a minute, with rougher figures.")] = False,
    mib: Annotated[int, typer.Option(help="MiB of an extent; 1024, or 256 with --quick.")] = 0,
    rounds: Annotated[int, typer.Option(help="Rounds of each measurement.")] = 0,
    threads: Annotated[
        list[int], typer.Option(min=1, help="Numbers of threads; by default 1, 2, 4 ...")
    ] = [],  # noqa: B006
) -> None:
    """Measures how soon a store's host memory is ready."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    before = machine.load_average()
    size = (mib or (256 if quick else 1024)) << 20
    rounds = rounds or (2 if quick else 7)
    memory.require(SPARE * 2 * size)
    found, left_out = ways(thread_counts(threads), 2 * size)
    document: dict[str, Any] = {
        "benchmark": "start",
        "machine": machine.machine_facts(),
        "load_average": {"before": before},
        "method": {"rounds": rounds, "extent_bytes": size, "unit": "seconds a GiB"},
        "left_out": left_out,
        "extents": measure_extents(found, size, rounds),
        "servers": measure_servers(found, size, 1 if quick else 3, quick=quick),
    }
    document["load_average"]["after"] = machine.load_average()
    if as_json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        show(document)


if __name__ == "__main__":
    typer.run(main)
