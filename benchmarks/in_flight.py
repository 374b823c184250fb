"""The cost of reporting prefills in flight in matches: in the core, without sockets.

Caches that differ in their open reservations make the same calls in turns.
"""

import json
import sys
import time
from array import array
from collections.abc import Callable
from itertools import count
from statistics import median
from typing import Annotated, Any

import typer
from rich.table import Table

from kvstore.core.cache import PrefixCache
from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PageLayout
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Caller, Identity, MatchOptions, Sequence
from kvstore.core.values.tokens import TOKEN_BYTES
from support import machine
from support.table_console import table_console

EPOCH, NAMESPACE_ID, NOW = 1, b"sixteen bytes id", 1.0
PAGE_TOKENS = 16
CHUNK = 512
LONG, SHORT = 100_000, 2_000
CACHED_PAGES = 6_000
OPEN = 1_000
# As many long prompts as the default bound on announced tokens allows.
OPEN_LONG = 160
SLOTS = 300_000
FULL, QUICK = 1_000, 20
Timed = Callable[[], float]


def prompt(length: int, number: int, shared: int = 0) -> bytes:
    """Returns a prompt of ``length`` tokens. All prompts share the first ``shared`` tokens."""
    own = array("I", (each + 1_000_000 * (number + 2) for each in range(length - shared)))
    return array("I", range(shared)).tobytes() + own.tobytes()


class World:
    """A cache with one worker, and its open reservations."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.ids = count(1)
        self.cache = PrefixCache(EPOCH, limits or Limits())
        self.caller = Caller(Identity("bench"), b"lease id 16 byte", b"secret", EPOCH)
        self.cache.grant(self.caller, ttl=None, display_name="", features=(), now=NOW)
        self.cache.bind(self.caller, process_id=1, pid=1, uid=1)
        layout = PageLayout(PAGE_TOKENS, 64, 1, OpaqueContent(b"in flight"))
        identity = NamespaceIdentity(b"model")
        self.cache.open_namespace(self.caller, identity, layout, NAMESPACE_ID, NOW)
        self.cache.add_extent(1, 1, SLOTS)
        self.cache.acknowledge(1, [1])

    def acquire(self, tokens: bytes) -> tuple[int, int]:
        """Matches, and reserves the rest of a prompt's whole pages. Returns the ids."""
        pin_id, reservation_id = next(self.ids), next(self.ids)
        self.cache.acquire(
            self.caller,
            NAMESPACE_ID,
            Sequence(tokens),
            MatchOptions(pin_id),
            reservation_id=reservation_id,
            total_page_count=len(tokens) // TOKEN_BYTES // PAGE_TOKENS,
            now=NOW,
        )
        return pin_id, reservation_id

    def publish(self, tokens: bytes, pages: int) -> None:
        """Caches the first pages of a prompt."""
        tokens = tokens[: pages * PAGE_TOKENS * TOKEN_BYTES]
        _, reservation_id = self.acquire(tokens)
        self.cache.insert(self.caller, reservation_id, Sequence(tokens), NOW)
        self.cache.abort(self.caller, [reservation_id], NOW)

    def match(self, tokens: bytes) -> float:
        """Returns the seconds of a match."""
        pin_id = next(self.ids)
        begun = time.perf_counter()
        self.cache.match(self.caller, NAMESPACE_ID, Sequence(tokens), MatchOptions(pin_id), NOW)
        took = time.perf_counter() - begun
        self.cache.release(self.caller, [pin_id], NOW)
        return took

    def prefill(self, tokens: bytes) -> float:
        """Returns the seconds of an acquire, of inserts chunk by chunk, and of an abort."""
        begun = time.perf_counter()
        pin_id, reservation_id = self.acquire(tokens)
        for start in range(0, len(tokens), CHUNK * TOKEN_BYTES):
            part = tokens[start : start + CHUNK * TOKEN_BYTES]
            part = part[: len(part) // PAGE_TOKENS // TOKEN_BYTES * PAGE_TOKENS * TOKEN_BYTES]
            sequence = Sequence(part, start // TOKEN_BYTES)
            self.cache.insert(self.caller, reservation_id, sequence, NOW)
        self.cache.abort(self.caller, [reservation_id], NOW)
        took = time.perf_counter() - begun
        self.cache.release(self.caller, [pin_id], NOW)
        self.cache.evict_prefix(self.caller.identity, NAMESPACE_ID, b"")
        return took


def long_matches() -> dict[str, Timed]:
    """Returns matches of 100,000 tokens, of which 96,000 are cached."""
    worlds = {name: World() for name in ("nothing open", "1,000 open elsewhere", "160 open there")}
    shared = CACHED_PAGES * PAGE_TOKENS
    for world in worlds.values():
        world.publish(prompt(LONG, 0, shared), CACHED_PAGES)
    for number in range(OPEN):
        worlds["1,000 open elsewhere"].acquire(prompt(SHORT, number))
    for number in range(OPEN_LONG):
        worlds["160 open there"].acquire(prompt(LONG, number, shared))
    asked = prompt(LONG, OPEN_LONG // 2, shared)
    return {name: lambda world=world: world.match(asked) for name, world in worlds.items()}  # type: ignore[misc]  # each its own


def cold_matches() -> dict[str, Timed]:
    """Returns matches of 2,000 tokens of which none is cached."""
    worlds = {name: World() for name in ("nothing open", "1,000 open there")}
    for number in range(OPEN):
        worlds["1,000 open there"].acquire(prompt(SHORT, number, SHORT // 2))
    asked = prompt(SHORT, OPEN // 2, SHORT // 2)
    return {name: lambda world=world: world.match(asked) for name, world in worlds.items()}  # type: ignore[misc]  # each its own


def prefills() -> dict[str, Timed]:
    """Returns whole prefills of 2,000 tokens in chunks of 512, announced or not."""
    worlds = {"not announced": World(Limits(max_announced_bytes=0)), "announced": World()}
    asked = prompt(SHORT, 0)
    return {name: lambda world=world: world.prefill(asked) for name, world in worlds.items()}  # type: ignore[misc]  # each its own


def in_turns(calls: dict[str, Timed], rounds: int) -> dict[str, dict[str, float]]:
    """Makes each call once a round. Returns medians, and medians of differences to the first."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name, call in list(calls.items())[:: -1 if number % 2 else 1]:
            times[name].append(call())
    first = next(iter(times.values()))
    return {
        name: {
            "median_us": round(median(each) * 1e6, 2),
            "more_us": round(median(a - b for a, b in zip(each, first, strict=True)) * 1e6, 2),
        }
        for name, each in times.items()
    }


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
    quick: Annotated[bool, typer.Option(help="Take some seconds, with rougher figures.")] = False,
) -> None:
    """Measures the cost of prefills in flight for matches and for those who compute."""
    before = machine.load_average()
    rounds = QUICK if quick else FULL
    cases = {
        "match of 100,000 tokens, 96,000 cached": long_matches,
        "match of 2,000 tokens, none cached": cold_matches,
        "prefill of 2,000 tokens in 4 chunks": prefills,
    }
    document: dict[str, Any] = {
        "benchmark": "in_flight",
        "machine": machine.machine_facts(),
        "method": {"rounds": rounds},
        "cases": {name: in_turns(make(), rounds) for name, make in cases.items()},
        "load_average": {"before": before, "after": machine.load_average()},
    }
    if as_json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return
    table = Table("", "", "median, us", "more, us")
    for case, figures in document["cases"].items():
        for name, each in figures.items():
            table.add_row(case, name, str(each["median_us"]), str(each["more_us"]))
    table_console().print(table)


if __name__ == "__main__":
    typer.run(main)
