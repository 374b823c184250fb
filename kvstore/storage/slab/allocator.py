"""Slots for pending writes: evicts pages and cuts segments if none is free."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from kvstore.storage.page_store import PageKey
from kvstore.storage.slab.file import SlabFile, aligned
from kvstore.storage.slab.layout import ALIGNMENT
from kvstore.storage.slab.policy import SlabPolicy
from kvstore.storage.slab.segment import Segment, SlotPhase, write_headers
from kvstore.storage.slab.superblock import SegmentHeader
from kvstore.storage.slab.tables import PendingWrite, SlabTables

# At least this many pages go at once, since an eviction costs two syncs whatever its size.
EVICT_AT_ONCE = 256


class SlabAllocator:
    """Gives writes their slots. Used by the committing thread only; raises ``OSError``.

    Without a policy nothing is evicted, and a full slab refuses writes.
    """

    def __init__(self, file: SlabFile, tables: SlabTables, policy: SlabPolicy | None) -> None:
        self._file = file
        self._tables = tables
        self._policy = policy

    def allocate(self, writes: list[PendingWrite]) -> None:
        """Sets the slots of as many writes as possible, adjacent as far as possible."""
        sizes: dict[int, list[PendingWrite]] = {}
        for each in writes:
            sizes.setdefault(each.page_bytes, []).append(each)
        for page_bytes, wanting in sizes.items():
            self._make_room(page_bytes, len(wanting))
            with self._tables.mutex:
                rest = iter(wanting)
                left = len(wanting)
                while left and (slots := self._tables.pool.take(page_bytes, left)):
                    left -= len(slots)
                    for slot, each in zip(slots, islice(rest, len(slots)), strict=True):
                        each.slot = slot

    def _make_room(self, page_bytes: int, count: int) -> None:
        """Frees slots until ``count`` are FREE, or no more can be freed."""
        while True:
            with self._tables.mutex:
                short = count - self._tables.pool.available(page_bytes)
                spare = self._tables.pool.spare(page_bytes)
            if short <= 0:
                return
            if spare is not None:
                self._cut(spare, page_bytes)
            elif self._policy is None or not (
                self._take_over(page_bytes)
                or self._evict(self._policy, page_bytes, max(short, EVICT_AT_ONCE))
            ):
                return

    def _evict(self, policy: SlabPolicy, page_bytes: int, count: int) -> bool:
        """Evicts up to ``count`` pages of one size. Returns whether it evicted any."""
        tables = self._tables
        keys: list[PageKey] = []
        slots: list[int] = []
        with tables.mutex:
            segments = tables.pool.of_size(page_bytes)
            # A small slab must not lose all of its pages at once.
            most = min(count, max(sum(len(each.states) for each in segments) // 2, 1))
        with self._parents_held():
            for slot in islice(policy.nominate(segments), most):
                segment, index = tables.pool.at(slot)
                header = segment.read_header(index)
                assert header is not None  # it is CACHED
                keys.append(header.key)
                slots += tables.leave([header.key])
            tables.counters.evicted_pages += len(keys)
        self._empty(slots)
        tables.tell_lost(keys)
        return bool(slots)

    @contextmanager
    def _parents_held(self) -> Iterator[None]:
        """Holds the mutex, and marks parents of pending pages as being read meanwhile."""
        tables = self._tables
        with tables.mutex:
            parents = {
                PageKey(each.page.key.namespace, each.page.parent)
                for each in tables.pending.values()
            }
            held = [slot for key in parents if (slot := tables.index.find(key)) is not None]
            places = [tables.pool.at(slot) for slot in held]
            for segment, index in places:
                segment.readers[index] += 1
            try:
                yield
            finally:
                for segment, index in places:
                    segment.readers[index] -= 1

    def _take_over(self, page_bytes: int) -> bool:
        """Takes a segment from pages of another size. Returns whether one was available."""
        tables = self._tables
        with self._parents_held():
            segment = tables.pool.over_share(page_bytes)
            if segment is None:
                return False
            keys = [
                header.key
                for index, state in enumerate(segment.states)
                if state == SlotPhase.CACHED and (header := segment.read_header(index)) is not None
            ]
            slots = tables.leave(keys)
            after = tables.index.after(keys)
            slots += tables.leave(after)
            tables.counters.evicted_pages += len(slots)
        self._empty(slots)
        tables.tell_lost([*keys, *after])
        self._cut(segment.header.number, page_bytes)
        return True

    def _empty(self, slots: list[int]) -> None:
        """Empties the headers of LEAVING slots on the disk, and makes the slots FREE."""
        tables = self._tables
        with tables.mutex:
            for slot in slots:
                segment, index = tables.pool.at(slot)
                segment.write_header(index, None)
        write_headers(self._file, tables.pool.segments, slots)
        with tables.mutex:
            tables.settle(slots)

    def _cut(self, number: int, page_bytes: int) -> None:
        """Cuts a segment anew. It must have no pages.

        The new table overlaps old pages, whose bytes a client chose. So the table is zeroed on the
        disk before the segment's header names it as a table.
        """
        tables, file = self._tables, self._file
        with tables.mutex:
            tables.generation += 1
            header = SegmentHeader(file.superblock.slab, number, tables.generation, page_bytes)
        segment = Segment(header, tables.pool.layout(page_bytes))
        file.write(segment.base, [aligned(bytes(ALIGNMENT)), segment.table])
        file.sync()
        file.write(segment.base, [aligned(header.encode())])
        file.sync()
        with tables.mutex:
            tables.pool.assign(segment)
