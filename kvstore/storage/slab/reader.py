"""Reads of several pages at once; each page is checked before its reader gets it."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from threading import Lock
from time import perf_counter
from typing import NamedTuple

import structlog

from kvstore.storage.page_store import (
    Content,
    PageRead,
    ReadAnswer,
    StoreState,
    checksum_of,
    size_of,
)
from kvstore.storage.slab.header import SlotHeader
from kvstore.storage.slab.layout import INDEX_BITS
from kvstore.storage.slab.runs import RunMover, in_runs
from kvstore.storage.slab.segment import Segment, SlotPhase
from kvstore.storage.slab.tables import PendingRemoval, SlabTables, call_out

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Failed runs in a row after which the slab becomes FAILED.
MAX_FAILURES = 4


class _Found(NamedTuple):
    """A page that is being read: its number in the request, and its header."""

    number: int
    slot: int
    header: SlotHeader
    into: Content


class _Request:
    """One call's pages, and the number of their runs still under way."""

    def __init__(self, wanted: Sequence[PageRead], done: Callable[[ReadAnswer], None]) -> None:
        self._begun = perf_counter()
        self._done = done
        self._mutex = Lock()
        self._checksums: list[int | None] = [None] * len(wanted)
        self._byte_count = 0
        self._runs = 0

    def expect(self, runs: int) -> None:
        """Sets the number of runs. Answers at once if there are none."""
        self._runs = runs
        if not runs:
            self._answer()

    def finish(self, whole: Sequence["_Found"], byte_count: int) -> None:
        """Records the whole pages of a finished run."""
        with self._mutex:
            for each in whole:
                self._checksums[each.number] = each.header.checksum
            self._byte_count += byte_count
            self._runs -= 1
            last = not self._runs
        if last:
            self._answer()

    def _answer(self) -> None:
        seconds = perf_counter() - self._begun
        call_out(self._done, ReadAnswer(tuple(self._checksums), self._byte_count, seconds))


class SlabReader:
    """Reads pages on a few threads. Thread-safe; raises nothing.

    A page's header is checked against its key before the read, and its content against the header's
    checksum after it. No write reuses the slot meanwhile. ``queue_bytes`` bounds the bytes being
    read; pages beyond it are misses.
    """

    def __init__(
        self, tables: SlabTables, mover: RunMover, threads: Executor, queue_bytes: int
    ) -> None:
        self._tables = tables
        self._mover = mover
        self._threads = threads
        self._queue_bytes = queue_bytes
        self._failures = 0

    def read(self, wanted: Sequence[PageRead], done: Callable[[ReadAnswer], None]) -> None:
        """Reads pages. Calls ``done`` once, on any thread, perhaps before this returns."""
        request = _Request(wanted, done)
        with self._tables.mutex:
            found = self._begin(wanted)
        runs = self._runs(found)
        request.expect(len(runs))
        for run in runs:
            try:
                self._threads.submit(self._read_run, run, request)
            except RuntimeError:  # closed meanwhile
                self._end(run, request, ())

    def _begin(self, wanted: Sequence[PageRead]) -> list[_Found]:
        """Finds pages, and holds their slots until they are read."""
        tables = self._tables
        found: list[_Found] = []
        if tables.state is not StoreState.OPEN:
            return found
        for number, (key, into) in enumerate(wanted):
            slot = tables.index.find(key)
            if slot is None:
                continue
            segment, index = tables.pool.at(slot)
            page_bytes = segment.layout.page_bytes
            header = segment.read_header(index)
            if header is None or header.key != key or size_of(into) != page_bytes:
                continue
            if tables.reading_bytes + page_bytes > self._queue_bytes:
                tables.counters.refused_reads += 1
                continue
            tables.reading_bytes += page_bytes
            segment.readers[index] += 1
            segment.touched[index] = 1
            found.append(_Found(number, slot, header, into))
        return found

    def _runs(self, found: list[_Found]) -> list[list[_Found]]:
        """Groups pages into runs of adjacent slots."""
        found.sort(key=lambda each: each.slot)
        runs: list[list[_Found]] = []
        for number in dict.fromkeys(each.slot >> INDEX_BITS for each in found):
            pages = [each for each in found if each.slot >> INDEX_BITS == number]
            slot_bytes = self._tables.pool.segments[number].layout.slot_bytes
            runs += [pages[run] for run in in_runs([each.slot for each in pages], slot_bytes)]
        return runs

    def _read_run(self, run: list[_Found], request: _Request) -> None:
        """Reads and checks a run. Any error makes its pages misses."""
        whole: list[_Found] = []
        try:
            segment, first = self._tables.pool.at(run[0].slot)
            self._mover.read(segment, first, [each.into for each in run])
            corrupt: list[_Found] = []
            for each in run:
                intact = checksum_of(each.into) == each.header.checksum
                (whole if intact else corrupt).append(each)
            self._failures = 0
            self._drop_corrupt(corrupt)
        except OSError as error:
            self._drop_unreadable(run, error)
        except Exception as error:  # noqa: BLE001 - the request needs an answer in any case
            self._tables.fail(error)
        self._end(run, request, whole)

    def _end(self, run: list[_Found], request: _Request, whole: Sequence[_Found]) -> None:
        """Releases the slots, and hands the run's whole pages to the request."""
        tables = self._tables
        size = 0
        with tables.mutex:
            if tables.state is StoreState.FAILED:
                whole = ()
            for each in run:
                segment, index = tables.pool.at(each.slot)
                tables.reading_bytes -= segment.layout.page_bytes
                self._give_up(segment, index)
            for each in whole:
                size += size_of(each.into)
            tables.counters.read_pages += len(whole)
            tables.counters.read_bytes += size
        request.finish(whole, size)

    def _give_up(self, segment: Segment, index: int) -> None:
        segment.readers[index] -= 1
        if segment.states[index] == SlotPhase.GONE and not segment.readers[index]:
            segment.move(index, SlotPhase.FREE)

    def _drop_corrupt(self, pages: Sequence[_Found]) -> None:
        """Removes pages whose bytes are not those that were written."""
        counters = self._tables.counters
        before = counters.corrupt_pages
        counters.corrupt_pages += self._drop(pages)
        if _doubled(before, counters.corrupt_pages):
            log.error("slab_pages_corrupt", page_count=counters.corrupt_pages)

    def _drop_unreadable(self, pages: Sequence[_Found], error: OSError) -> None:
        """Removes pages that the disk cannot read. Several failures in a row fail the slab."""
        counters = self._tables.counters
        before = counters.unreadable_pages
        counters.unreadable_pages += self._drop(pages)
        if _doubled(before, counters.unreadable_pages):
            log.error("slab_pages_unreadable", page_count=counters.unreadable_pages, why=str(error))
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            self._tables.fail(error)

    def _drop(self, pages: Sequence[_Found]) -> int:
        """Drops pages that are still in the slots that were read. Returns how many."""
        tables = self._tables
        with tables.mutex:
            keys = [
                each.header.key for each in pages if tables.index.find(each.header.key) == each.slot
            ]
            slots = tables.leave(keys)
            if slots and tables.state is StoreState.OPEN:
                tables.removals.append(PendingRemoval(slots, [], lambda _: None))
                tables.mutex.notify_all()
        tables.tell_lost(keys)
        return len(keys)


def _doubled(before: int, after: int) -> bool:
    """Returns whether a count doubled, so that the log gets ever fewer lines."""
    return after.bit_length() > before.bit_length()
