"""Segments of pages on the nodes of a shared engine: load, and hits left beside a dead node.

It places the pages of a trace by rules that a cluster could follow, without any server.
"""

import json
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer

from kvstore.remote.secret.names import SHARD_COUNT
from support.machine import load_average
from support.replay.placement import Placement, TracePages
from support.replay.trace import BLOCK_TOKENS, load
from support.table_console import keyed_table, table_console
from support.traces import readable

# The part of a public trace that is in this repository, and its number of requests.
CUT = Path(__file__).parents[1] / "tests" / "data" / "conversation_300.jsonl.gz"
FIGURES = ("stored", "read", "hits_left")

app = typer.Typer()


def growing(shortest: int, longest: int, shards: int = 0, *, is_even: bool = False) -> Placement:
    """Returns segments that each take as many pages as all before them, up to the longest."""

    def start(page: int) -> int:
        if page < shortest:
            return 0
        if page >= longest:
            return page - page % longest
        return shortest << ((page // shortest).bit_length() - 1)

    name = f"{shortest}, {shortest} … {longest}"
    if shards:
        name += f", {shards} {'even ' if is_even else ''}shards"
    return Placement(name, start, shortest, shards, is_even)


def equal(pages: int) -> Placement:
    """Returns segments of one length."""
    name = "page" if pages == 1 else f"{pages} pages"
    return Placement(name, lambda page: page - page % pages, pages)


# The pages of the first two segments, and of each segment of a long path.
LENGTHS = (16, 1024)
PLACEMENTS = (
    equal(1),
    equal(64),
    equal(256),
    Placement("first page", lambda _page: 0, 1 << 30),
    growing(32, 256),
    growing(32, 1024),
    growing(64, 256),
    growing(8, 1024),
    growing(16, 256),
    growing(*LENGTHS),
    growing(*LENGTHS, 64),
    growing(*LENGTHS, 256),
    growing(*LENGTHS, 1024),
    growing(*LENGTHS, SHARD_COUNT, is_even=True),
)


@app.command()
def main(
    trace: Annotated[Path, typer.Option(help="File of JSON lines, plain or .gz.")] = CUT,
    nodes: Annotated[list[int], typer.Option(min=2, help="Nodes. May be repeated.")] = [8, 32],  # noqa: B006 - typer only reads it
    page_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a page.")] = 16,
    draws: Annotated[int, typer.Option(min=1, help="Drawings of the places.")] = 10,
    requests: Annotated[int | None, typer.Option(min=1, help="Number of requests.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print only one line of JSON.")] = False,
) -> None:
    """Prints for each rule the load of the busiest node and the hits without one node."""
    if BLOCK_TOKENS % page_tokens:
        raise typer.BadParameter(f"use a divisor of {BLOCK_TOKENS} for --page-tokens")
    with readable():
        asked = load(trace, requests)
    rows: list[dict[str, Any]] = []
    for placement in PLACEMENTS:
        with readable():
            pages = TracePages(asked, page_tokens, placement)
        for count in nodes:
            drawn = [pages.placed(count, seed) for seed in range(draws)]
            figures = {
                name: round(mean(getattr(each, name) for each in drawn), 3) for name in FIGURES
            }
            rows.append({"segments": placement.name, "nodes": count, **figures})
    if not as_json:
        table = keyed_table("Load of the busiest node, and hits left", *rows[0])
        for row in rows:
            table.add_row(*map(str, row.values()))
        table_console().print(table)
    result = {
        "rows": rows,
        "requests": len(asked),
        "page_tokens": page_tokens,
        "draws": draws,
        "load_average": load_average(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    app()
