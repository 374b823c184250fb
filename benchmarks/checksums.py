"""The cost of checksums: an insert with and without them, and a match that verifies pages.

Everything is measured in turns in one run. Inserts use clients on one store, and matches use a
store for each rate.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

import typer
from rich.table import Table

from kvstore_client import Client, ClientConfig, Namespace, NamespaceIdentity
from kvstore_client.testing import running_store
from kvstore_client.values.page_layout import OpaqueContent, PageLayout
from support import machine
from support.table_console import table_console

PAGE_TOKENS = 16
PAGES = 128
TOKENS = list(range(PAGES * PAGE_TOKENS))
PAGE_KIB = (64, 288, 1024)
LIMIT = 60.0
FULL, QUICK = 100, 10


@contextmanager
def opened(folder: Path, page_bytes: int, *, checksums: bool = True) -> Iterator[Namespace]:
    """Attaches a client and opens the one namespace for pages of this size."""
    layout = PageLayout(PAGE_TOKENS, page_bytes, OpaqueContent(b"checksums"))
    config = ClientConfig(page_checksums=checksums, call_timeout=LIMIT)
    with Client(folder, config) as client:
        namespace = client.namespace(NamespaceIdentity(b"%d" % page_bytes), layout)
        assert namespace.wait_open(LIMIT), namespace.failure
        yield namespace


def insert_once(namespace: Namespace, writer: int, number: int) -> float:
    """Writes and inserts all pages of a new sequence. Returns the seconds of the insert alone."""
    tokens = TOKENS if writer == 0 else [len(TOKENS) + 2 * number + writer, *TOKENS[1:]]
    with namespace.reserve(start_page=0, page_count=PAGES) as reservation:
        for page in reservation.pages:
            namespace.page(page)[:] = os.urandom(4096) * (namespace.layout.page_bytes // 4096)
        begun = time.perf_counter()
        inserted = reservation.insert(tokens, position=0)
        took = time.perf_counter() - begun
    assert inserted.published_page_count == PAGES
    return took


def match_once(namespace: Namespace, number: int) -> float:
    """Matches all pages, the same each time. Returns the seconds of the match alone."""
    del number
    begun = time.perf_counter()
    match = namespace.match([*TOKENS, 0])
    took = time.perf_counter() - begun
    assert match.page_count == PAGES, match.failure
    match.release()
    return took


def in_turns(calls: dict[str, Callable[[int], float]], rounds: int) -> dict[str, dict[str, float]]:
    """Makes each call once a round. Returns medians, means, and medians of ratios to the first."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name, call in list(calls.items())[:: -1 if number % 2 else 1]:
            times[name].append(call(number))
    first = next(iter(times.values()))
    return {
        name: {
            "median_us": round(median(each) * 1e6, 1),
            "mean_us": round(fmean(each) * 1e6, 1),
            "ratio": round(median(a / b for a, b in zip(each, first, strict=True)), 3),
        }
        for name, each in times.items()
    }


def measure(page_bytes: int, rounds: int) -> dict[str, Any]:
    """Returns the figures of one size of pages."""
    size = str(3 * PAGES * page_bytes)
    with ExitStack() as stack:
        matches: dict[str, Callable[[int], float]] = {}
        inserts: dict[str, Callable[[int], float]] = {}
        for rate in (0.0, 0.005, 1.0):
            store = stack.enter_context(
                running_store(
                    "--tier1-bytes", size, "--extent-bytes", size, "--verify-rate", str(rate)
                )
            )
            namespace = stack.enter_context(opened(store.runtime_dir, page_bytes))
            insert_once(namespace, writer=0, number=0)
            matches[f"rate {rate:g}"] = partial(match_once, namespace)
            if not inserts:
                without = stack.enter_context(
                    opened(store.runtime_dir, page_bytes, checksums=False)
                )
                inserts = {
                    "without": partial(insert_once, without, 1),
                    "with": partial(insert_once, namespace, 2),
                }
        figures = {"page_bytes": page_bytes, "match": in_turns(matches, rounds)}
        return figures | {"insert": in_turns(inserts, rounds)}


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
    quick: Annotated[bool, typer.Option(help="Take half a minute, with rougher figures.")] = False,
    rounds: Annotated[int, typer.Option(help="Rounds of each measurement.")] = 0,
    page_kib: Annotated[list[int], typer.Option(min=4)] = list(PAGE_KIB),  # noqa: B006
) -> None:
    """Measures the cost of checksums and of verification, for 128 pages of several sizes."""
    before = machine.load_average()
    sizes = [measure(each << 10, rounds or (QUICK if quick else FULL)) for each in page_kib]
    document = {
        "benchmark": "checksums",
        "machine": machine.machine_facts(),
        "load_average": {"before": before, "after": machine.load_average()},
        "method": {"rounds": rounds or (QUICK if quick else FULL), "pages": PAGES},
        "sizes": sizes,
    }
    if as_json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return
    table = Table("page, KiB", "call", "", "median, us", "mean, us", "ratio")
    for size in sizes:
        for call in ("insert", "match"):
            for name, each in size[call].items():
                figures = (each["median_us"], each["mean_us"], each["ratio"])
                table.add_row(str(size["page_bytes"] >> 10), call, name, *map(str, figures))
    table_console().print(table)


if __name__ == "__main__":
    typer.run(main)
