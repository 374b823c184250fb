"""One engine's calls to a cache: acquire, insert, release, abort; and the store's evictions."""

import random
import time
from array import array
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from kvstore.core.cache import PrefixCache
from kvstore.core.journal.journal import Journal
from kvstore.core.journal.memory import JournalMemory
from kvstore.core.pool.pages import evict
from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PageLayout
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Caller, Identity, MatchOptions, Sequence
from kvstore.core.values.slots import Generations

PAGE_TOKENS = 16
NAMESPACE_ID, NOW = b"n" * 16, 1.0
CALLER = Caller(Identity("tenant"), b"l" * 16, b"digest", 1)
LAYOUT = PageLayout(PAGE_TOKENS, 64, 1, OpaqueContent(b"layout"))
RANDOM = random.Random(1)


class Times(NamedTuple):
    """The median seconds of each verb."""

    acquire: float
    insert: float
    release_and_abort: float


def empty_cache() -> PrefixCache:
    """Returns a cache without anything in it."""
    return PrefixCache(1, Limits())


def opened(
    slots: int, memory: JournalMemory | None, generations: Generations | None = None
) -> PrefixCache:
    """Returns a cache with one lease, whose process has all memory mapped."""
    cache = empty_cache()
    if memory is not None:
        cache.state.journal_to(Journal(memory))
    cache.grant(CALLER, ttl=None, display_name="", features=(), now=NOW)
    cache.bind(CALLER, process_id=1, pid=1, uid=1)
    cache.open_namespace(CALLER, NamespaceIdentity(b"model"), LAYOUT, NAMESPACE_ID, NOW)
    cache.add_extent(1, 1, slots, generations)
    cache.acknowledge(1, cache.extents_owed(1))
    return cache


def tokens(page_count: int) -> bytes:
    """Returns the tokens of so many pages that nobody cached."""
    return array("I", (RANDOM.getrandbits(30) for _ in range(page_count * PAGE_TOKENS))).tobytes()


def seconds_of(cache: PrefixCache, sequences: list[bytes], ids: Iterator[int]) -> Times:
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
            total_page_count=len(each) // LAYOUT.page_tokens // 4,
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
    return Times(*map(median, times))


def seconds_to_evict(cache: PrefixCache, pages: int, count: int) -> float:
    """Evicts so many pages, ``count`` times. Returns the median seconds."""
    clock, times = time.perf_counter, list[float]()
    [arena] = cache.arenas.values()
    for _ in range(count):
        begun = clock()
        evict(arena.policy.nominate(pages))
        times.append(clock() - begun)
    return median(times)
