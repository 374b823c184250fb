"""The committing thread: it writes pages, then their headers, and syncs after each."""

from collections.abc import Iterator
from concurrent.futures import Executor, Future, wait
from itertools import groupby
from threading import Thread

import structlog

from kvstore import background
from kvstore.storage.page_store import StoreState, checksum_of
from kvstore.storage.slab.allocator import SlabAllocator
from kvstore.storage.slab.file import SlabFile
from kvstore.storage.slab.header import SlotHeader
from kvstore.storage.slab.layout import INDEX_BITS
from kvstore.storage.slab.runs import RunMover, in_runs
from kvstore.storage.slab.segment import SlotPhase, write_headers
from kvstore.storage.slab.tables import PendingRemoval, PendingWrite, SlabTables, call_out

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Removed pages whose headers are emptied under the mutex at a time: half a millisecond.
REMOVED_AT_ONCE = 256
# Pages of one commit. Writes that arrive meanwhile share the next one's syncs.
BATCH_BYTES = 64 << 20


class SlabCommitter:
    """Commits the slab's pending writes and removals in batches, on its own thread.

    A header on the disk never names a page that is not on the disk. So a batch writes and syncs its
    pages, then its headers, then calls the callbacks. Headers of removals go with the batch's. A
    slot is written again only after its empty header was synced.
    """

    def __init__(
        self,
        file: SlabFile,
        tables: SlabTables,
        allocator: SlabAllocator,
        mover: RunMover,
        threads: Executor,
    ) -> None:
        self._file = file
        self._tables = tables
        self._allocator = allocator
        self._mover = mover
        self._threads = threads
        self._thread = Thread(target=self._run, name="kvstore-slab-commit", daemon=True)

    def start(self) -> None:
        """Starts the thread; once."""
        self._thread.start()

    def join(self) -> None:
        """Waits until all pending work is committed. The slab must be closed first."""
        self._thread.join()

    def _run(self) -> None:
        tables = self._tables
        while True:
            with tables.mutex:
                tables.mutex.wait_for(
                    lambda: tables.writes or tables.removals or tables.state is not StoreState.OPEN
                )
                if tables.state is StoreState.FAILED:
                    break
                if not tables.writes and not tables.removals:
                    return
                writes = self._take_writes()
            removals: list[PendingRemoval] = []
            try:
                self._commit(writes, removals)
            except Exception as error:  # noqa: BLE001 - any error; nobody else would report it
                tables.fail(error)
                self._end(writes, removals, removed=False)
        with tables.mutex:
            writes, removals = list(tables.writes), self._take_removals()
            tables.writes.clear()
        self._end(writes, removals, removed=False)

    def _take_writes(self) -> list[PendingWrite]:
        """Takes a batch from the pending writes; it may be empty."""
        taken: list[PendingWrite] = []
        size = 0
        while self._tables.writes and size < BATCH_BYTES:
            taken.append(self._tables.writes.popleft())
            size += taken[-1].page_bytes
        return taken

    def _take_removals(self) -> list[PendingRemoval]:
        taken = list(self._tables.removals)
        self._tables.removals.clear()
        return taken

    def _commit(self, writes: list[PendingWrite], removals: list[PendingRemoval]) -> None:
        """Commits a batch, and the removals that arrive before its headers are written."""
        tables = self._tables
        self._allocator.allocate([each for each in writes if not each.cancelled])
        self._write_pages([each for each in writes if each.slot is not None])
        with tables.mutex:
            removals += self._take_removals()
            named = self._name(writes)
        emptied = self._unname(removals)
        slots = [each.slot for each in named if each.slot is not None]
        write_headers(self._file, tables.pool.segments, [*slots, *emptied])
        for part in _parts(emptied):
            with tables.mutex:
                tables.settle(part)
                tables.counters.removed_pages += len(part)
        with tables.mutex:
            for each in named:
                self._publish(each)
        self._end(writes, removals, removed=True)

    def _write_pages(self, writes: list[PendingWrite]) -> None:
        """Writes pages into their slots. Returns once they are durable."""
        if not writes:
            return
        runs: list[Future[None]] = []
        by_slot = sorted(writes, key=_slot)
        for number, group in groupby(by_slot, key=lambda each: _slot(each) >> INDEX_BITS):
            segment = self._tables.pool.segments[number]
            pages = list(group)
            runs += [
                self._threads.submit(self._write_run, pages[run])
                for run in in_runs([_slot(each) for each in pages], segment.layout.slot_bytes)
            ]
        wait(runs)
        for each in runs:
            each.result()
        self._file.sync()

    def _write_run(self, pages: list[PendingWrite]) -> None:
        segment, first = self._tables.pool.at(_slot(pages[0]))
        for each in pages:
            if each.checksum is None:
                each.checksum = checksum_of(each.content)
        self._mover.write(segment, first, [each.content for each in pages])

    def _name(self, writes: list[PendingWrite]) -> list[PendingWrite]:
        """Sets the headers of written pages. Returns those that were not cancelled meanwhile."""
        tables = self._tables
        named: list[PendingWrite] = []
        for each in writes:
            if each.slot is None:
                continue
            segment, index = tables.pool.at(each.slot)
            if each.cancelled:
                segment.move(index, SlotPhase.FREE)
                each.slot = None
                continue
            assert each.checksum is not None  # set as it was written
            tables.generation += 1
            page = each.page
            header = SlotHeader(
                page.key, page.parent, page.valid_tokens, tables.generation, each.checksum
            )
            segment.write_header(index, header)
            named.append(each)
        return named

    def _unname(self, removals: list[PendingRemoval]) -> list[int]:
        """Empties the headers of removed pages, some under the mutex at a time.

        Returns their slots, which nobody else uses until they are settled.
        """
        slots = [slot for each in removals for slot in each.slots]
        slots += [
            write.slot for each in removals for write in each.writes if write.slot is not None
        ]
        for part in _parts(slots):
            with self._tables.mutex:
                for slot in part:
                    segment, index = self._tables.pool.at(slot)
                    segment.write_header(index, None)
        return slots

    def _publish(self, write: PendingWrite) -> None:
        """Makes a page visible to readers, unless it was removed while its header was written."""
        segment, index = self._tables.pool.at(_slot(write))
        if write.cancelled:
            segment.move(index, SlotPhase.LEAVING)
            return
        write.committed = True
        segment.move(index, SlotPhase.CACHED)
        self._tables.index.add(write.page.key, _slot(write))
        self._tables.counters.written_pages += 1
        self._tables.counters.written_bytes += write.page_bytes

    def _end(
        self, writes: list[PendingWrite], removals: list[PendingRemoval], *, removed: bool
    ) -> None:
        """Calls the callbacks of a batch, and forgets its writes."""
        with self._tables.mutex:
            for write in writes:
                del self._tables.pending[write.page.key]
                self._tables.queued_bytes -= write.page_bytes
        for write in writes:
            call_out(write.done, write.committed)
        for removal in removals:
            call_out(removal.done, removed)


def _parts(slots: list[int]) -> Iterator[list[int]]:
    """Yields the slots a part at a time. Gives way to calls between two parts."""
    for first in range(0, len(slots), REMOVED_AT_ONCE):
        yield slots[first : first + REMOVED_AT_ONCE]
        background.give_way()


def _slot(write: PendingWrite) -> int:
    """Returns the slot of a write that already has one."""
    assert write.slot is not None
    return write.slot
