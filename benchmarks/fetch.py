"""The cost of a hit, and of 64 MiB of its KV, fetched and stored: ours beside LMCache's server.

Everything is measured in turns in one run. LMCache runs in an environment of its own, which
`make bench-peers` sets up; without it ours is measured alone. docs/peers.md has the table.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from support.fetch.page import PROGRAM, lines
from support.fetch.run import run
from support.fetch.tables import tables
from support.page_section import put_section
from support.table_console import table_console


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
    output: Annotated[
        Path | None, typer.Option(help="Also write the JSON value to this file.")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="Also write the tables into this page.")] = None,
    quick: Annotated[bool, typer.Option(help="Take half a minute, with rougher figures.")] = False,
    rounds: Annotated[int, typer.Option(help="Rounds of each measurement.")] = 0,
    peers: Annotated[bool, typer.Option(help="Also measure LMCache if it is set up.")] = True,
) -> None:
    """Measures hits, fetches and stores of kvstore, and of LMCache if it is set up."""
    document = run(quick=quick, rounds=rounds, peers=peers)
    text = json.dumps(document)
    if output:
        output.write_text(text + "\n", encoding="utf-8")
    if page:
        put_section(page, PROGRAM, lines(document))
    if as_json:
        sys.stdout.write(text + "\n")
        return
    for table in tables(document):
        table_console().print(table)


if __name__ == "__main__":
    typer.run(main)
