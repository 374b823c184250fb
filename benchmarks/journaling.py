"""The cost of a journal at the verbs: acquire, insert, release and abort, with and without one.

Two caches take turns in one process, with the same sequences. The journal's memory is a stand-in: a
copy into a buffer that is as large as a segment, and a dictionary of rows.
"""

import gc
import json
import random
import time
from array import array
from collections.abc import Hashable, Iterator
from itertools import count
from statistics import median
from typing import Annotated

import typer

from kvstore.core.cache import PrefixCache
from kvstore.core.journal.journal import Journal
from kvstore.core.journal.memory import Buffer
from kvstore.core.journal.rows import HoldKey, HoldRow, Row, Table, encode_hold, encode_row
from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PageLayout
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Caller, Identity, MatchOptions, Sequence
from support import machine

PAGE_TOKENS, PAGES = 16, 64
# Half of each sequence is one of these, which are cached.
PROMPTS = 50
SLOTS, QUICK_SLOTS = 20_000, 2_000
ROUNDS, QUICK_ROUNDS = 40, 3
CALLS = 60
SEGMENT_BYTES = 64 << 20
NAMESPACE_ID, NOW = b"n" * 16, 1.0
CALLER = Caller(Identity("tenant"), b"l" * 16, b"digest", 1)
LAYOUT = PageLayout(PAGE_TOKENS, 64, 1, OpaqueContent(b"layout"))
VERBS = ("acquire", "insert", "release and abort")
RANDOM = random.Random(1)


class BufferMemory:
    """A journal's memory in this process: it wraps, and nothing is ever read."""

    def __init__(self) -> None:
        self._bytes = memoryview(bytearray(SEGMENT_BYTES))
        self._at = 0
        self._rows: dict[Hashable, bytes] = {}
        self._tombstones: list[HoldKey | None] = [None] * (1 << 16)
        self._buried = 0

    def append(self, *parts: Buffer) -> None:
        """Adds a record."""
        record = b"".join(parts)
        if self._at + len(record) > SEGMENT_BYTES:
            self._at = 0
        self._bytes[self._at : self._at + len(record)] = record
        self._at += len(record)

    def put(self, table: Table, key: Hashable, row: Row) -> None:
        """Puts a row."""
        del table
        self._rows[key] = encode_hold(row) if isinstance(row, HoldRow) else encode_row(row)

    def clear(self, table: Table, key: Hashable) -> None:
        """Removes a row."""
        del table
        self._rows.pop(key, None)

    def bury(self, key: HoldKey) -> None:
        """Leaves a tombstone."""
        self._tombstones[self._buried % len(self._tombstones)] = key
        self._buried += 1


def opened(slots: int, *, journaled: bool) -> PrefixCache:
    """Returns a cache with one lease, whose process has all memory mapped."""
    cache = PrefixCache(1, Limits())
    if journaled:
        cache.state.journal_to(Journal(BufferMemory()))
    cache.grant(CALLER, ttl=None, display_name="", features=(), now=NOW)
    cache.bind(CALLER, process_id=1, pid=1, uid=1)
    cache.open_namespace(CALLER, NamespaceIdentity(b"model"), LAYOUT, NAMESPACE_ID, NOW)
    cache.add_extent(1, 1, slots)
    cache.acknowledge(1, cache.extents_owed(1))
    return cache


def tokens(page_count: int) -> bytes:
    """Returns the tokens of so many pages that nobody cached."""
    return array("I", (RANDOM.getrandbits(30) for _ in range(page_count * PAGE_TOKENS))).tobytes()


def seconds_of(
    cache: PrefixCache, sequences: list[bytes], ids: Iterator[int]
) -> tuple[float, float, float]:
    """Sends sequences as an engine does. Returns the median seconds of each of the verbs."""
    clock, times = time.perf_counter, (list[float](), list[float](), list[float]())
    for each in sequences:
        pin_id, reservation_id = next(ids), next(ids)
        asked, options = Sequence(each + bytes(4)), MatchOptions(pin_id)
        begun = clock()
        match, _ = cache.acquire(
            CALLER,
            NAMESPACE_ID,
            asked,
            options,
            reservation_id=reservation_id,
            total_page_count=PAGES,
            now=NOW,
        )
        acquired = clock()
        at = match.matched_token_count
        rest = Sequence(each[4 * at :], at, base_pin_id=pin_id if at else None)
        inserting = clock()
        cache.insert(CALLER, reservation_id, rest, NOW)
        inserted = clock()
        cache.release(CALLER, [pin_id], NOW)
        cache.abort(CALLER, [reservation_id], NOW)
        ended = clock()
        for verb, took in zip(
            times, (acquired - begun, inserted - inserting, ended - inserted), strict=True
        ):
            verb.append(took)
    return median(times[0]), median(times[1]), median(times[2])


def measured(slots: int, rounds: int) -> dict[str, dict[str, float]]:
    """Returns the microseconds of each verb without and with a journal, and their ratio."""
    caches = [opened(slots, journaled=each) for each in (False, True)]
    prompts, ids = [tokens(PAGES // 2) for _ in range(PROMPTS)], count(1)
    # The first round fills the pools.
    fill = slots // (PAGES // 2)
    gc.disable()
    found: list[list[tuple[float, float, float]]] = [[], []]
    for number in range(rounds + 1):
        calls = CALLS if number else fill
        sequences = [RANDOM.choice(prompts) + tokens(PAGES // 2) for _ in range(calls)]
        for which in (0, 1) if number % 2 else (1, 0):
            took = seconds_of(caches[which], sequences, ids)
            if number:
                found[which].append(took)
    gc.enable()
    results = {}
    for place, verb in enumerate(VERBS):
        without, with_one = ([each[place] for each in times] for times in found)
        ratio = median(b / a for a, b in zip(without, with_one, strict=True))
        results[verb] = {
            "without_us": round(median(without) * 1e6, 1),
            "with_us": round(median(with_one) * 1e6, 1),
            "ratio": round(ratio, 3),
        }
    return results


def main(
    *,
    quick: Annotated[bool, typer.Option(help="Take a few seconds, for a rough answer.")] = False,
) -> None:
    """Measures the verbs and prints the figures as JSON."""
    slots, rounds = (QUICK_SLOTS, QUICK_ROUNDS) if quick else (SLOTS, ROUNDS)
    facts = {**machine.machine_facts(), "load_average_before": machine.load_average()}
    print(json.dumps({"machine": facts, "verbs": measured(slots, rounds)}, indent=1))


if __name__ == "__main__":
    typer.run(main)
