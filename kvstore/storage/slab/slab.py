"""The slab of a disk: pages in one preallocated file, which survive a restart."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from pathlib import Path
from typing import Self

from kvstore import background
from kvstore.storage.errors import SlabUnusable
from kvstore.storage.page_store import (
    Content,
    Done,
    PageKey,
    PageRead,
    PageWrite,
    Presence,
    ReadAnswer,
    StoreFacts,
    StoreState,
    StoreUse,
    size_of,
)
from kvstore.storage.slab.allocator import SlabAllocator
from kvstore.storage.slab.committer import SlabCommitter
from kvstore.storage.slab.file import SlabFile
from kvstore.storage.slab.index import SlabIndex
from kvstore.storage.slab.policy import SlabPolicy
from kvstore.storage.slab.reader import SlabReader
from kvstore.storage.slab.recovery import recover
from kvstore.storage.slab.runs import RunMover
from kvstore.storage.slab.slot_pool import SlotPool
from kvstore.storage.slab.tables import PendingRemoval, PendingWrite, SlabTables, call_out

# Pages that a removal drops under the mutex at a time: a millisecond.
DROPPED_AT_ONCE = 256
FACTS = StoreFacts(shared=False, loses_silently=False, look_seconds=0.0)


@dataclass(frozen=True)
class SlabConfig:
    """Path and sizes of a slab.

    ``size_bytes`` is rounded down to whole segments. A new file gets ``segment_bytes``, a
    multiple of 4 KiB that has room for a page and 8 KiB. ``thread_count`` threads read, and as many
    write. ``queue_bytes`` bounds the bytes waiting to be written, and also those being read.
    """

    path: Path
    size_bytes: int
    segment_bytes: int = 256 << 20
    thread_count: int = 4
    queue_bytes: int = 256 << 20


class Slab:
    """An open slab, which is a page store. Thread-safe; raises nothing once it is open.

    Every error of the disk is a miss. A page whose bytes changed leaves. After an error the slab is
    FAILED: it refuses writes, and every read is a miss. ``policy`` chooses the victims of a full
    slab; without one a full slab refuses until pages are removed. ``lost`` is called on a thread of
    the slab, with pages that left without a request.
    """

    def __init__(
        self,
        config: SlabConfig,
        policy: SlabPolicy | None = None,
        lost: Callable[[Sequence[PageKey]], None] = lambda _: None,
    ) -> None:
        """Opens or creates the file, and reads its index of pages.

        Raises ``SlabInUse`` or ``SlabUnusable``.
        """
        self._config = config
        self._file = SlabFile.open(
            config.path, size_bytes=config.size_bytes, segment_bytes=config.segment_bytes
        )
        pool = SlotPool(self._file.superblock.segment_bytes, self._file.segment_count)
        self._tables = SlabTables(pool, SlabIndex(pool.segments), lost)
        try:
            recover(self._file, self._tables)
        except OSError as error:
            self._file.close()
            raise SlabUnusable(f"{config.path}: {error.strerror}") from error
        mover = RunMover(self._file)
        self._readers = ThreadPoolExecutor(config.thread_count, "kvstore-slab-read")
        self._writers = ThreadPoolExecutor(config.thread_count, "kvstore-slab-write")
        self._reader = SlabReader(self._tables, mover, self._readers, config.queue_bytes)
        allocator = SlabAllocator(self._file, self._tables, policy)
        self._committer = SlabCommitter(self._file, self._tables, allocator, mover, self._writers)
        self._committer.start()

    @property
    def facts(self) -> StoreFacts:
        """A slab has one owner, says what it lost, and asks only memory."""
        return FACTS

    @property
    def lost(self) -> Callable[[Sequence[PageKey]], None]:
        """The callback for pages that left without a request."""
        return self._tables.lost

    @lost.setter
    def lost(self, lost: Callable[[Sequence[PageKey]], None]) -> None:
        self._tables.lost = lost

    @property
    def state(self) -> StoreState:
        """The state of the slab; FAILED is the alarm."""
        return self._tables.state

    @property
    def is_empty(self) -> bool:
        """True if it has no page."""
        return not self._tables.index.page_count

    @property
    def reading_bytes(self) -> int:
        """Bytes being read, for which a new read would wait."""
        return self._tables.reading_bytes

    @property
    def reading_room(self) -> int:
        """Bytes that may be read in addition; larger reads are refused."""
        return self._config.queue_bytes - self._tables.reading_bytes

    @property
    def writing_room(self) -> int:
        """Bytes that may be queued in addition; larger writes are refused."""
        return self._config.queue_bytes - self._tables.queued_bytes

    def write(
        self, page: PageWrite, content: Content, done: Done, *, checksum: int | None = None
    ) -> bool:
        """Begins to write a page. Returns whether the slab accepted it. Does not wait.

        An accepted write calls ``done`` once, on a thread of the slab: with True once the page
        survives a loss of power, with False if it was not written. ``content`` must not change
        until then. ``checksum`` is the page's xxh3-64 if the caller knows it, and not 0; it also
        finds damage from before the call. The slab refuses a page that it has or is writing, that
        fits no segment or not into the queue. A slab that is not OPEN refuses every page.
        """
        size = size_of(content)
        fits = size > 0 and self._tables.pool.layout(size).slot_count > 0
        tables = self._tables
        with tables.mutex:
            taken = (
                tables.state is StoreState.OPEN
                and fits
                and tables.queued_bytes + size <= self._config.queue_bytes
                and page.key not in tables.pending
                and tables.index.find(page.key) is None
            )
            if not taken:
                tables.counters.refused_writes += 1
                return False
            write = PendingWrite(page, content, size, checksum or None, done)
            tables.pending[page.key] = write
            tables.writes.append(write)
            tables.queued_bytes += size
            tables.mutex.notify_all()
            return True

    def read(
        self,
        wanted: Sequence[PageRead],
        done: Callable[[ReadAnswer], None],
        deadline: float = inf,
    ) -> None:
        """Reads pages into the caller's memory. Calls ``done`` once, perhaps before it returns.

        Adjacent pages are read by one call. A page that is absent, of another size, or too much
        for the queue is a miss. A read of the disk that began is not ended by its deadline.
        """
        del deadline
        self._reader.read(wanted, done)

    def look(self, keys: Iterable[PageKey], deadline: float = inf) -> int:
        """Returns how many pages of a path a read would find now, up to the first miss.

        Uses no key beyond that miss. Each match asks, also while a large removal has the mutex for
        tenths of a second, so this waits for nobody. Python looks a key up in one step, so it finds
        the page or not. The deadline never comes near.
        """
        del deadline
        tables, count = self._tables, 0
        find = tables.index.find
        for key in keys:
            if tables.state is not StoreState.OPEN or find(key) is None:
                break
            count += 1
        return count

    def there(self, keys: Sequence[PageKey]) -> list[Presence]:
        """Returns the presence of each page, all at one moment."""
        tables = self._tables
        with tables.mutex:
            if tables.state is not StoreState.OPEN:
                return [Presence.ABSENT] * len(keys)
            return [self._presence(key) for key in keys]

    def remove(self, keys: Sequence[PageKey], done: Done) -> None:
        """Removes pages and all of their descendants. Readers no longer find them.

        Calls ``done`` once: with True once they cannot return, even after a crash, with False if
        the disk does not remove them. Writes under way are cancelled. An absent page counts as
        removed. Takes O(pages of the namespace) if they have descendants that were not named.
        """
        tables = self._tables
        with tables.mutex:
            taken = tables.state is StoreState.OPEN
            if taken:
                tables.removals.append(PendingRemoval(*tables.doom(keys), done))
                tables.mutex.notify_all()
        if not taken:
            call_out(done, value=False)

    def remove_namespace(self, namespace: bytes, done: Done) -> None:
        """Removes every page of a namespace, by its digest, as ``remove`` does.

        Takes the mutex for some pages at a time, so that reads get in between. Nobody may write
        pages of the namespace meanwhile.
        """
        tables, slots = self._tables, list[int]()
        while True:
            with tables.mutex:
                if tables.state is not StoreState.OPEN:
                    break
                keys = list(islice(tables.index.iterate(namespace), DROPPED_AT_ONCE))
                if not keys:
                    on_their_way = [key for key in tables.pending if key.namespace == namespace]
                    more, writes = tables.doom(on_their_way)
                    tables.removals.append(PendingRemoval([*slots, *more], writes, done))
                    tables.mutex.notify_all()
                    return
                slots += tables.leave(keys)
            background.give_way()
        call_out(done, value=False)

    def page(self, key: PageKey) -> PageWrite | None:
        """Returns a page's header fields, or None if the slab does not have it."""
        with self._tables.mutex:
            slot = self._tables.index.find(key)
            if slot is None:
                return None
            segment, index = self._tables.pool.at(slot)
            header = segment.read_header(index)
            return header and PageWrite(header.key, header.parent, header.valid_tokens)

    def keys(self, namespace: bytes) -> list[PageKey]:
        """Returns the pages of a namespace, unordered."""
        with self._tables.mutex:
            return self._tables.index.keys(namespace)

    def namespaces(self) -> dict[bytes, int]:
        """Returns how many pages each namespace has, by its digest."""
        with self._tables.mutex:
            return self._tables.index.namespaces()

    def use(self) -> StoreUse:
        """Returns the contents of the slab, as one snapshot."""
        tables = self._tables
        with tables.mutex:
            segments = tables.pool.segments.values()
            return StoreUse(
                state=tables.state,
                size_bytes=self._config.size_bytes,
                page_count=tables.index.page_count,
                slot_count=sum(each.layout.slot_count for each in segments),
                queued_bytes=tables.queued_bytes,
                counters=replace(tables.counters),
            )

    def close(self) -> None:
        """Writes queued pages, finishes reads, and closes the file. Idempotent."""
        with self._tables.mutex:
            if self._tables.state is StoreState.CLOSED:
                return
            failed = self._tables.state is StoreState.FAILED
            if not failed:
                self._tables.state = StoreState.CLOSED
            self._tables.mutex.notify_all()
        self._committer.join()
        self._readers.shutdown()
        self._writers.shutdown()
        self._tables.state = StoreState.CLOSED
        self._file.close()

    def _presence(self, key: PageKey) -> Presence:
        if self._tables.index.find(key) is not None:
            return Presence.STORED
        write = self._tables.pending.get(key)
        is_pending = write is not None and not write.cancelled
        return Presence.PENDING if is_pending else Presence.ABSENT

    def __enter__(self) -> Self:
        """Returns the slab itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes it."""
        self.close()
