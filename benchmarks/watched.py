"""The cost of events: the request path's calls, without events, with events and with a watch."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from statistics import median, quantiles
from typing import Annotated, Any
from unittest.mock import patch

import typer
from rich.table import Table

from kvstore.core.cache import PrefixCache
from kvstore.core.values.event_log import EventWatch
from kvstore.core.values.requests import Identity
from support import machine
from support.rpc.local import TimedStore, local_worker
from support.rpc.slices import LocalStore, Slice
from support.rpc.worker import PAGE_BYTES, PAGE_TOKENS
from support.table_console import table_console

TOKENS = 2_048
# Room for about two prompts, so that each cycle has to evict the pages of the one before.
SLOTS = 5 * TOKENS // PAGE_TOKENS // 2
FULL, QUICK = (300, 0.03), (2, 0.03)
# The core's functions that record events of pages.
NOTING = ("pool.pages.note_pages", "pool.pages._note_removed", "tiers.moves.note_pages")
IN_PROCESS, ALONE = "in process", "store alone"


def _nothing(*_: object) -> None:
    pass


@contextmanager
def not_noted(_: TimedStore) -> Iterator[None]:
    """Disables the recording of page events."""
    with ExitStack() as stack:
        for name in NOTING:
            stack.enter_context(patch(f"kvstore.core.{name}", _nothing))
        yield


@contextmanager
def noted(_: TimedStore) -> Iterator[None]:
    """Records events without any watch."""
    yield


@contextmanager
def watched(store: TimedStore) -> Iterator[None]:
    """Adds a watch of all events whose queue is full, so that the oldest are lost."""
    cache: PrefixCache = store._cache  # noqa: SLF001 - under nobody's mutex: one thread calls
    watch = EventWatch(Identity("", admin=True), b"", room=4_096, wake=_nothing)
    cache.events.begin(watch, with_history=False)
    try:
        yield
    finally:
        cache.events.end(watch)


MODES: dict[str, Callable[[TimedStore], AbstractContextManager[None]]] = {
    "not noted": not_noted,
    "noted": noted,
    "watched": watched,
}


def measure(rounds: int, seconds: float) -> dict[str, Any]:
    """Returns the calls' times in each mode, in microseconds, and ratios to the first mode's."""
    slices: dict[tuple[str, str], list[Slice]] = {}
    with local_worker(SLOTS * PAGE_BYTES) as (worker, store):
        local = LocalStore(worker, store)
        local.publish([TOKENS])
        for number in range(rounds + 1):
            for name, mode in list(MODES.items())[:: -1 if number % 2 else 1]:
                with mode(store):
                    taken = local.measure(TOKENS, seconds)
                if number:  # the first round warms up
                    for where, each in zip((IN_PROCESS, ALONE), taken, strict=True):
                        slices.setdefault((where, name), []).append(each)
    return {where: _figures({m: slices[where, m] for m in MODES}) for where in (IN_PROCESS, ALONE)}


def _figures(slices: dict[str, list[Slice]]) -> dict[str, Any]:
    """Returns each call's median time in each mode, and the medians of ratios round by round.

    The ratios' quartiles say how far rounds differ.
    """
    first = next(iter(slices))
    found: dict[str, Any] = {}
    for call in slices[first][0].times:
        medians = {m: [median(each.times[call]) / 1e3 for each in of] for m, of in slices.items()}
        found[call] = {
            mode: {"median_us": round(median(times), 2), **_ratios(times, medians[first])}
            for mode, times in medians.items()
        }
    return found


def _ratios(times: list[float], base: list[float]) -> dict[str, float]:
    ratios = [a / b for a, b in zip(times, base, strict=True)]
    low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {"ratio": round(middle, 4), "ratio_q1": round(low, 4), "ratio_q3": round(high, 4)}


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
    quick: Annotated[bool, typer.Option(help="Take a second. The figures mean nothing.")] = False,
) -> None:
    """Measures the cost of events for calls of the request path."""
    before = machine.load_average()
    rounds, seconds = QUICK if quick else FULL
    document = {
        "machine": machine.machine_facts(),
        "load_average": {"before": before},
        "method": {
            "tokens": TOKENS,
            "pages": TOKENS // PAGE_TOKENS,
            "rounds": rounds,
            "seconds_a_slice": seconds,
            "times": "processor time of the calling thread; nothing waits",
        },
        "calls": measure(rounds, seconds),
    }
    document["load_average"]["after"] = machine.load_average()
    if as_json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return
    table = Table("where", "call", *MODES, title="microseconds, and ratio to not noted")
    for where, calls in document["calls"].items():
        for call, modes in calls.items():
            cells = [f"{each['median_us']} ({each['ratio']})" for each in modes.values()]
            table.add_row(where, call, *cells)
    table_console().print(table)


if __name__ == "__main__":
    typer.run(main)
