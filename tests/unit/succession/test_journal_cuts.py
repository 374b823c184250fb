"""A cache whose process is killed at each write of its journal, and at each byte of it."""

from array import array
from collections.abc import Callable
from functools import wraps
from typing import Self, SupportsIndex, TypeVar

import pytest

from core.core_builders import CoreWorld
from kvstore.core.cache import PrefixCache
from kvstore.core.invariants.check import Invariants
from kvstore.core.journal.journal import Journal
from kvstore.core.recovery.recover import recover
from kvstore.ring import NeverCreated
from kvstore.succession.journal.durable_journal import DurableJournal
from kvstore.succession.journal.store_row import StoreRow
from recoveries.snapshot import Snapshot
from rings.recording_memory import Crash, WriteLog

# Thousands of starts, which run no line that other tests do not.
pytestmark = pytest.mark.no_cover
SIZE_BYTES = 16 << 10
Answer = TypeVar("Answer")


class LoggedGenerations(array):  # type: ignore[type-arg]
    """The generations of an extent, each change of which is in a log of writes."""

    def __new__(cls, extent_id: int, slot_count: int, log: WriteLog) -> Self:
        """Makes a table of zeros."""
        made = super().__new__(cls, "Q", bytes(8 * slot_count))
        made.extent_id, made.log = extent_id, log
        log.say("made", (extent_id, slot_count))
        return made

    extent_id: int
    log: WriteLog

    def __setitem__(self, index: SupportsIndex, generation: int) -> None:  # type: ignore[override]
        self.log.say("moved", (self.extent_id, int(index), generation))
        super().__setitem__(index, generation)


class CutWorld(CoreWorld):
    """A cache over a journal whose writes are recorded, with a snapshot after each call."""

    def __init__(self) -> None:
        self.log = WriteLog()
        self.names: list[str] = []
        self.snapshots: list[Snapshot] = []
        super().__init__(slots=8, divides_by_token=True, journal_of=self._watch)

    def _watch(self, cache: PrefixCache, make: Callable[[], PrefixCache]) -> None:
        self.make = make
        store = StoreRow(7, 1, b"key", b"settings")
        self.journal = DurableJournal.create(self._memory, SIZE_BYTES, store)
        self.log.say("created")
        cache.state.journal_to(Journal(self.journal))
        self.journal.follow(cache)
        add_extent = cache.add_extent

        def with_logged(arena_id: int, extent_id: int, slot_count: int) -> None:
            add_extent(
                arena_id, extent_id, slot_count, LoggedGenerations(extent_id, slot_count, self.log)
            )

        cache.add_extent = with_logged  # type: ignore[method-assign, assignment]
        for name, verb in list(vars(cache).items()):
            if callable(verb):
                setattr(cache, name, self._watched(cache, verb))
        self._done(cache)

    def _memory(self, name: str, size_bytes: int) -> memoryview:
        self.names.append(name)
        return self.log.memory(bytes(size_bytes))  # type: ignore[return-value]

    def _watched(self, cache: PrefixCache, verb: Callable[..., Answer]) -> Callable[..., Answer]:
        @wraps(verb)
        def watched(*args: object, **kwargs: object) -> Answer:
            answer = verb(*args, **kwargs)
            self._done(cache)
            return answer

        return watched

    def _done(self, cache: PrefixCache) -> None:
        """Remembers what is there after a call, and cleans."""
        self.snapshots.append(Snapshot(cache))
        self.log.say("done")
        self.journal.clean(5, above=0)

    def live(self) -> None:
        """Lives a short life with everything that a cleaner may get wrong."""
        worker = self.worker
        steps: list[Callable[[], object]] = [
            lambda: worker.acquire("abc", 5, 6),
            lambda: worker.insert(6, "a"),
            lambda: worker.insert(6, "b", 1),
            lambda: worker.match("ab", 7),
            lambda: self.evict_prefix("b"),
            lambda: self.evict_prefix("ab"),
            lambda: worker.publish("abx"),
            lambda: worker.abort(6),
            lambda: worker.publish("cdef"),
            lambda: worker.release(7),
            lambda: worker.publish("ghi"),
            lambda: worker.match("gh", 8),
            lambda: worker.release(8),
            lambda: worker.publish("xyz"),
        ]
        for step in steps:
            step()


def tables_of(crash: Crash) -> dict[int, "array[int]"]:
    """Returns the generations as a crash leaves them."""
    tables = {}
    for extent_id, slot_count in crash.said["made"]:  # type: ignore[misc]
        tables[extent_id] = array("Q", bytes(8 * slot_count))
    for extent_id, index, generation in crash.said["moved"]:  # type: ignore[misc]
        tables[extent_id][index] = generation
    return tables


def test_each_cut_is_recovered() -> None:
    """Before and after each write the cache is as before or as after the call that wrote."""
    world = CutWorld()
    world.live()
    assert world.journal.given_up is None
    assert world.journal._ring.tail > 2_000
    checked: object = None
    count = 0
    for crash in world.log.crashes():
        try:
            opened = DurableJournal.open(dict(zip(world.names, crash.images, strict=True)))
        except NeverCreated:
            assert not crash.said["created"]
            continue
        records, rows, tombstones, _ = opened.contents()
        found = list(records), rows, list(tombstones), tables_of(crash), len(crash.said["done"])
        if found == checked or not crash.said["done"]:
            continue
        checked, count = found, count + 1
        before = world.snapshots[found[4] - 1]
        after = world.snapshots[min(found[4], len(world.snapshots) - 1)]
        cache = recover(opened.contents(), tables_of(crash), world.make, world.now).cache
        Invariants(cache).check()
        check(before, after, Snapshot(cache), found[3])
    assert count > 100


def check(
    before: Snapshot, after: Snapshot, found: Snapshot, tables: dict[int, "array[int]"]
) -> None:
    """Checks what is recovered in the middle of a call."""
    for place, copy in before.pages.items():
        if after.pages.get(place) == copy:
            extent_id, index = copy.slot >> 32, copy.slot & 0xFFFFFFFF
            is_there = tables[extent_id][index] == copy.generation
            assert (found.pages.get(place) == copy) == is_there
    for place, copy in found.pages.items():
        assert copy in (before.pages.get(place), after.pages.get(place))
    for name in ("pins", "reservations"):
        old, new, now = (getattr(each, name) for each in (before, after, found))
        assert now.keys() >= old.keys() & new.keys()
        assert now.keys() <= old.keys() | new.keys()
        for key in old.keys() & new.keys():
            assert now[key].slots in (old[key].slots, new[key].slots)
