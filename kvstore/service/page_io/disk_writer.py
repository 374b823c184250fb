"""Disk writes: pages chosen under the store's mutex, written beside the requests."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import takewhile
from threading import Event, Lock
from typing import NamedTuple

import structlog

from kvstore import background
from kvstore.core import PrefixCache
from kvstore.core.tiers.disk_writes import DiskWrite
from kvstore.service.clock import Clock
from kvstore.service.log_budget import LogBudget
from kvstore.service.page_io.disk_slab import Disk
from kvstore.storage.errors import CudaFailed
from kvstore.storage.memory_tiers import Tiers
from kvstore.storage.slab.header import PageKey
from kvstore.storage.slab.policy import WriteAdmission
from kvstore.storage.slab.runs import Content
from kvstore.storage.slab.slab import Slab
from kvstore.storage.slab.tables import SlabPage

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Pages chosen at once at most. Each takes some microseconds under the store's mutex.
BATCH_PAGES = 64
# Rounds of one step, so that the thread shows progress.
ROUNDS = 64


class _Wanted(NamedTuple):
    """A page worth a write; ``end`` counts the pages of the sequence through this one."""

    end: int
    page: SlabPage
    checksum: int
    content: Content


class _Writes:
    """The writes of one keep: finished ones, and the number still under way. Thread-safe."""

    def __init__(self, keep: DiskWrite, ended: Callable[["_Writes"], None]) -> None:
        self.keep = keep
        self._written: set[int] = set()
        self._mutex = Lock()
        self._ended = ended
        # One for the thread that submits the writes.
        self._left = 1

    @property
    def kept_end(self) -> int:
        """The page of the path through which all pages of the keep are stored for good."""
        ends = takewhile(self._written.__contains__, (each.end for each in self.keep.pages))
        return max(ends, default=self.keep.start)

    def expect(self, end: int) -> Callable[[bool], None]:
        """Returns the callback for the result of the page that ends at ``end``."""
        with self._mutex:
            self._left += 1

        def done(written: bool) -> None:  # noqa: FBT001 - the slab's way to tell
            self.end(end if written else None)

        return done

    def end(self, written_end: int | None = None) -> None:
        """Records that a write ended, and the page if it is stored for good."""
        with self._mutex:
            if written_end is not None:
                self._written.add(written_end)
            self._left -= 1
            last = not self._left
        if last:
            self._ended(self)


class Keeper:
    """Writes the pages to tier 3 that are worth it.

    ``mutex`` is the store's; it guards ``cache`` and is never held while bytes are copied or the
    slab is asked. ``due`` is set when there is work.

    While the slab's queue is full nothing begins, and the core drops the oldest touches. A page
    refused for want of room waits for its next touch.
    """

    def __init__(
        self,
        cache: PrefixCache,
        mutex: Lock,
        *,
        memory: Tiers,
        disk: Disk,
        admission: WriteAdmission,
        clock: Clock,
    ) -> None:
        self.due = Event()
        self._cache = cache
        self._mutex = mutex
        self._memory = memory
        self._disk = disk
        self._admission = admission
        self._finished: deque[_Writes] = deque()
        self._lines = LogBudget(clock)

    def note(self) -> None:
        """Sets ``due`` if pages were touched that may be written; under the store's mutex."""
        if self._cache.state.disk is not None and self._cache.writes_wanted():
            self.due.set()

    def step(self) -> None:
        """Finishes completed writes, and begins new ones until none is left.

        It also stops after ``ROUNDS`` rounds. For one thread.
        """
        for _ in range(ROUNDS):
            self._finish()
            slab = self._disk.usable()
            if slab is None:
                return
            room = slab.writing_room
            with self._mutex:
                keeps = self._cache.plan_writes(BATCH_PAGES, room)
            if not keeps:
                # The next write that ends sets ``due``.
                return
            for keep in keeps:
                self._write(slab, keep)
                background.give_way()
        self.due.set()

    def _finish(self) -> None:
        """Releases the pages whose writes the slab has finished."""
        while self._finished:
            writes = self._finished.popleft()
            with self._mutex:
                self._cache.finish_writes([writes.keep], [writes.kept_end])
            background.give_way()

    def _ended(self, writes: _Writes) -> None:
        self._finished.append(writes)
        self.due.set()

    def _write(self, slab: Slab, keep: DiskWrite) -> None:
        """Submits the pages of a path that are worth a write, in prefix order.

        Pages that the disk has count as written.
        """
        writes = _Writes(keep, self._ended)
        try:
            wanted = list(self._wanted(slab, keep))
            with self._disk.gate:
                with self._mutex:
                    stale = self._cache.write_is_stale(keep)
                refused = False
                for each in () if stale else wanted:
                    done = writes.expect(each.end)
                    # Read before the submission, so that a write that ends between the two is seen.
                    on_its_way = slab.is_on_its_way(each.page.key)
                    if slab.contains(each.page.key):
                        done(True)  # noqa: FBT003 - as the slab tells
                    elif on_its_way:
                        done(False)  # noqa: FBT003 - as the slab tells
                    elif refused or not slab.write(
                        each.page, each.content, done, checksum=each.checksum
                    ):
                        # The queue is full, and later pages are useless without this one. The next
                        # touch of this page counts as its second.
                        refused = True
                        self._admission.touch(each.page.key.digest)
                        done(False)  # noqa: FBT003 - as the slab tells
        except CudaFailed as error:
            if not self._memory.device.is_lost(error):
                self._lines.write(log.warning, "pages_not_kept", why=str(error))
        finally:
            writes.end()

    def _wanted(self, slab: Slab, keep: DiskWrite) -> Iterator[_Wanted]:
        """Yields the first pages of a keep that are stored or worth a write; touches the others.

        Raises ``CudaFailed``.
        """
        namespace, token_count = keep.namespace_digest, keep.namespace.layout.page_tokens
        parent = PageKey(namespace, keep.digests.through(keep.start))
        follows = not keep.start or _there(slab, parent)
        for end, slot, checksum in keep.pages:
            key = PageKey(namespace, keep.digests.through(end))
            there = _there(slab, key)
            worth = there or self._admission.touch(key.digest)
            if worth and not (there or follows):
                # A page is useless without its parent, so its next touch counts as its second
                # again.
                self._admission.touch(key.digest)
            follows = follows and worth
            content = self._memory.read(slot) if follows else None
            if content is not None:
                page = SlabPage(key, keep.digests.through(end - 1), token_count)
                yield _Wanted(end, page, checksum, [content])


def _there(slab: Slab, key: PageKey) -> bool:
    """Returns whether a page is on the disk, or its write is under way."""
    return slab.contains(key) or slab.is_on_its_way(key)
