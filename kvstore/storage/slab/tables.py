"""A slab's tables in memory, under one mutex, and the state of its disk."""

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from threading import Condition
from typing import TypeVar

import structlog

from kvstore.storage.page_store import Content, Done, PageKey, PageWrite, StoreCounters, StoreState
from kvstore.storage.slab.index import SlabIndex
from kvstore.storage.slab.segment import SlotPhase
from kvstore.storage.slab.slot_pool import SlotPool

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

T = TypeVar("T")


@dataclass(eq=False)
class PendingWrite:
    """A page on its way to the disk. ``slot`` is set once it has one."""

    page: PageWrite
    content: Content
    page_bytes: int
    checksum: int | None
    done: Done
    slot: int | None = None
    cancelled: bool = False
    committed: bool = False


@dataclass(eq=False)
class PendingRemoval:
    """Pages being removed: slots whose headers go, and writes that were under way."""

    slots: list[int]
    writes: list[PendingWrite]
    done: Done


@dataclass
class SlabTables:
    """The tables of an open slab. Hold ``mutex`` to read or write them.

    ``lost`` is called, without the mutex, with pages that left without a request to remove them.
    """

    pool: SlotPool
    index: SlabIndex
    lost: Callable[[Sequence[PageKey]], None]
    mutex: Condition = field(default_factory=Condition)
    state: StoreState = StoreState.OPEN
    counters: StoreCounters = field(default_factory=StoreCounters)
    generation: int = 0
    writes: deque[PendingWrite] = field(default_factory=deque)
    removals: deque[PendingRemoval] = field(default_factory=deque)
    pending: dict[PageKey, PendingWrite] = field(default_factory=dict)
    queued_bytes: int = 0
    reading_bytes: int = 0

    def fail(self, error: BaseException) -> None:
        """Marks the slab FAILED and logs it, once. Works with or without the mutex."""
        with self.mutex:
            if self.state is StoreState.FAILED:
                return
            if self.state is StoreState.OPEN:
                self.state = StoreState.FAILED
                self.mutex.notify_all()
        log.error(
            "slab_failed",
            why=str(error),
            advice="pages of tier 3 are misses until the server is started again; see the disk",
        )

    def leave(self, keys: Iterable[PageKey]) -> list[int]:
        """Drops pages from the index; returns their slots, LEAVING."""
        slots = self.index.drop_all(keys)
        for slot in slots:
            segment, index = self.pool.at(slot)
            segment.move(index, SlotPhase.LEAVING)
        return slots

    def doom(self, keys: Iterable[PageKey]) -> tuple[list[int], list[PendingWrite]]:
        """Drops pages and their descendants, on the disk or still being written.

        Also drops descendants of a page that is in neither place. Returns the slots, LEAVING,
        and the writes, which it cancels.
        """
        gone = set(keys)
        named = {key.namespace for key in gone}
        slots: list[int] = []
        writes: dict[PageKey, PendingWrite] = {}
        fresh = gone
        while fresh:
            slots += self.leave(fresh)
            after = self.index.after(fresh)
            slots += self.leave(after)
            gone = gone.union(after)
            pending = {
                key: write
                for key, write in self.pending.items()
                if key not in writes
                and key.namespace in named
                and (key in gone or not self._has_parent(write.page, gone))
            }
            writes |= pending
            fresh = pending.keys() - gone
            gone |= fresh
        for write in writes.values():
            write.cancelled = True
        return slots, list(writes.values())

    def _has_parent(self, page: PageWrite, gone: Container[PageKey]) -> bool:
        """Returns whether a page's parent is cached or being written, and not in ``gone``."""
        parent = PageKey(page.key.namespace, page.parent)
        if parent in gone:
            return False
        write = self.pending.get(parent)
        on_its_way = write is not None and not write.cancelled
        is_root = parent.digest == parent.namespace
        return is_root or on_its_way or self.index.find(parent) is not None

    def settle(self, slots: Iterable[int]) -> None:
        """Frees LEAVING slots whose headers the disk no longer has."""
        for slot in slots:
            segment, index = self.pool.at(slot)
            segment.touched[index] = 0
            segment.move(index, SlotPhase.GONE if segment.readers[index] else SlotPhase.FREE)

    def tell_lost(self, keys: Sequence[PageKey]) -> None:
        """Calls ``lost`` with pages that left. The caller must not hold the mutex."""
        if keys:
            call_out(self.lost, keys)


def call_out(function: Callable[[T], None], value: T) -> None:
    """Calls a callback. Logs what it raises, so that the caller goes on."""
    try:
        function(value)
    except Exception:
        log.exception("slab_callback_failed")
