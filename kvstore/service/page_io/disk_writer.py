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
from kvstore.service.page_io.slow_tier import SlowTier
from kvstore.storage.errors import CudaFailed
from kvstore.storage.memory_tiers import Tiers
from kvstore.storage.page_store import Content, PageKey, PageStore, PageWrite, Presence

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Pages chosen at once at most. Each takes some microseconds under the store's mutex.
BATCH_PAGES = 64
# All writes together hold at most this part of tier 1, and each of several page stores an equal
# share of that. So a page store that hangs neither fills tier 1 nor stops the others.
HELD_PART = 4
# Rounds of one step, so that the thread shows progress.
ROUNDS = 64


class _Wanted(NamedTuple):
    """A page worth a write, or stored; ``end`` counts the pages of the path through this one."""

    end: int
    page: PageWrite
    checksum: int
    content: Content
    presence: Presence


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

        def done(written: bool) -> None:  # noqa: FBT001 - as the page store tells
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
    """Writes the pages to one page store that are worth it.

    ``mutex`` is the store's; it guards ``cache`` and is never held while bytes are copied or the
    page store is asked. ``due`` is set when there is work.

    While the page store's queue is full nothing begins, and the core drops the oldest touches. A
    page refused for want of room waits for its next touch.
    """

    def __init__(
        self,
        cache: PrefixCache,
        mutex: Lock,
        *,
        memory: Tiers,
        tier: SlowTier,
        clock: Clock,
        keeper_count: int = 1,
    ) -> None:
        """Makes a keeper, one of ``keeper_count``."""
        self.due = Event()
        self._cache = cache
        self._mutex = mutex
        self._memory = memory
        self._tier = tier
        self._admission = tier.admission
        # Pages on their way hold their slots.
        self._most_bytes = memory.arenas[0].budget_bytes // HELD_PART // keeper_count
        self._finished: deque[_Writes] = deque()
        self._lines = LogBudget(clock)

    @property
    def name(self) -> str:
        """The name of its thread."""
        return "keeper_of_remote" if self._tier.is_shared else "keeper"

    @property
    def may_wait(self) -> bool:
        """True if a step may wait for another machine."""
        return self._tier.is_shared

    def note(self) -> None:
        """Sets ``due`` if pages were touched that may be written; under the store's mutex."""
        if self._cache.state.disk is not None and self._cache.writes_wanted(self._tier.number):
            self.due.set()

    def step(self) -> None:
        """Finishes completed writes, and begins new ones until none is left.

        It also stops after ``ROUNDS`` rounds. For one thread.
        """
        for _ in range(ROUNDS):
            self._finish()
            page_store = self._tier.usable()
            if page_store is None:
                return
            room, number = page_store.writing_room, self._tier.number
            with self._mutex:
                left = self._most_bytes - self._cache.bytes_under_way(number)
                keeps = self._cache.plan_writes(BATCH_PAGES, min(room, left), number)
            if not keeps:
                # The next write that ends sets ``due``.
                return
            for keep in keeps:
                self._write(page_store, keep)
                background.give_way()
        self.due.set()

    def _finish(self) -> None:
        """Releases the pages whose writes the page store has finished."""
        while self._finished:
            writes = self._finished.popleft()
            with self._mutex:
                self._cache.finish_writes([writes.keep], [writes.kept_end])
            background.give_way()

    def _ended(self, writes: _Writes) -> None:
        self._finished.append(writes)
        self.due.set()

    def _write(self, page_store: PageStore, keep: DiskWrite) -> None:
        """Submits the pages of a path that are worth a write, in prefix order.

        Pages that it has count as written.
        """
        writes = _Writes(keep, self._ended)
        try:
            wanted = list(self._wanted(page_store, keep))
            with self._tier.gate:
                with self._mutex:
                    stale = self._cache.write_is_stale(keep)
                refused = False
                for each in () if stale else wanted:
                    done = writes.expect(each.end)
                    if each.presence is not Presence.ABSENT:
                        done(each.presence is Presence.STORED)
                    elif refused or not page_store.write(
                        each.page, each.content, done, checksum=each.checksum
                    ):
                        # The queue is full, and later pages are useless without this one. The next
                        # touch of this page counts as its second.
                        refused = True
                        self._admission.touch(each.page.key.digest)
                        done(False)  # noqa: FBT003 - as the page store tells
        except CudaFailed as error:
            if not self._memory.device.is_lost(error):
                self._lines.write(log.warning, "pages_not_kept", why=str(error))
        finally:
            writes.end()

    def _wanted(self, page_store: PageStore, keep: DiskWrite) -> Iterator[_Wanted]:
        """Yields the first pages of a keep that are stored or worth a write; touches the others.

        Raises ``CudaFailed``.
        """
        namespace, token_count = keep.namespace_digest, keep.namespace.layout.page_tokens
        # The page before, or the namespace's digest.
        digests = keep.digests
        parent, *keys = (
            PageKey(namespace, *digests.name(end))
            for end in (keep.start, *(each.end for each in keep.pages))
        )
        above, *found = page_store.there([parent, *keys])
        follows = not keep.start or bool(above)
        for (end, slot, checksum), key, there in zip(keep.pages, keys, found, strict=True):
            worth = bool(there) or self._admission.touch(key.digest)
            if worth and not (there or follows):
                # A page is useless without its parent, so its next touch counts as its second
                # again.
                self._admission.touch(key.digest)
            follows = follows and worth
            content = self._memory.read(slot) if follows else None
            if content is not None:
                page = PageWrite(key, digests.through(end - 1), token_count)
                yield _Wanted(end, page, checksum, [content], there)
