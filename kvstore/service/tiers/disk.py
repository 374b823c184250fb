"""Tier 3 as the store has it: an open slab, or why there is none."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from enum import Enum
from threading import Event, Lock
from typing import NamedTuple, Self

import structlog

from kvstore.storage.errors import SlabInUse, SlabUnusable
from kvstore.storage.slab.book import SlabCounters, SlabState
from kvstore.storage.slab.header import PageKey
from kvstore.storage.slab.policy import SlabClock
from kvstore.storage.slab.slab import Slab, SlabConfig

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Seconds that an answer waits for the disk to forget what was removed.
REMOVAL_PATIENCE = 5.0
UNUSABLE = "the store goes on without tier 3 until it is started again; see the disk"
KEPT = "what was removed may return at the next start: remove the file before"


class DiskState(Enum):
    """Whether there is a tier 3; FAILED is the alarm."""

    ABSENT = "absent"
    OPEN = "open"
    FAILED = "failed"


class DiskUse(NamedTuple):
    """What is in tier 3 at one moment. Without an open slab all but ``state`` is zero."""

    state: DiskState
    size_bytes: int = 0
    page_count: int = 0
    slot_count: int = 0
    counters: SlabCounters = SlabCounters()


class _Gone:
    """Answers to removals that belong together; among ``kept`` until all of them were yes."""

    def __init__(self, count: int, kept: "set[_Gone]") -> None:
        self._left = count
        self._mutex = Lock()
        self._answered = Event()
        self._kept = kept
        kept.add(self)

    def take(self, removed: bool) -> None:  # noqa: FBT001 - the slab's way to tell
        """Takes an answer, which may come late."""
        with self._mutex:
            self._left -= removed
            last = not self._left
        if last:
            self._kept.discard(self)
        if last or not removed:
            self._answered.set()

    def wait(self) -> bool:
        """Waits for all answers, or the first no; returns whether all were yes."""
        self._answered.wait(REMOVAL_PATIENCE)
        with self._mutex:
            return not self._left


class Disk:
    """A slab for the store's threads. Thread-safe; nothing here waits for the disk but ``remove``.

    ``gate`` orders writes and removals: who submits a page to be written holds it from
    the look whether the page is in the index still, and a removal is submitted under it
    after the page left the index. So a removal is seen by the look, or finds the write
    under way. It is taken before the store's mutex and before the slab's, never within.
    """

    def __init__(self, slab: Slab | None = None, *, size_bytes: int = 0, why: str = "") -> None:
        """Without a slab there is no tier 3, or none for the reason given."""
        self.gate = Lock()
        self.slab = slab
        self.lost: Callable[[Items[PageKey]], None] = lambda _: None
        self._size_bytes = size_bytes
        self._why = why
        # Removals that were not answered with yes.
        self._kept: set[_Gone] = set()

    @classmethod
    def open(cls, config: SlabConfig) -> Self:
        """Opens the slab; where it cannot be had log why, and go on without.

        Raises ``SlabInUse`` where another process has the file.
        """
        disk = cls(size_bytes=config.size_bytes)
        try:
            disk.slab = Slab(config, SlabClock(), disk._tell_lost)
        except SlabInUse:
            raise
        except SlabUnusable as error:
            disk._why = str(error)
        if disk.slab is None:
            log.error("tier3_unusable", path=str(config.path), why=disk._why, advice=UNUSABLE)
        return disk

    @property
    def state(self) -> DiskState:
        """Whether it takes and gives pages, and can be relied on to forget some."""
        if self.slab is None:
            return DiskState.FAILED if self._why else DiskState.ABSENT
        usable = self.slab.state is SlabState.OPEN and not self._kept
        return DiskState.OPEN if usable else DiskState.FAILED

    def usable(self) -> Slab | None:
        """Returns the slab while it takes and gives pages."""
        slab = self.slab
        return slab if slab is not None and slab.state is SlabState.OPEN else None

    def leading(self, namespace: bytes, digests: Iterable[bytes]) -> int:
        """Returns how many of a path's pages are there for good, up to the first that is not."""
        slab = self.usable()
        return 0 if slab is None else slab.leading(PageKey(namespace, each) for each in digests)

    def remove(
        self, keys: Items[PageKey], namespaces: Items[bytes], submitted: Callable[[], None]
    ) -> bool:
        """Removes pages and all that comes after them, and namespaces by their digests.

        They are to have left the index before. ``submitted`` is called once nobody finds
        them here. Waits for the disk, and returns whether they cannot return; where it
        refuses, or takes long, a line and the alarm say so. Without the store's mutex.
        """
        gone = _Gone(1 + len(namespaces), self._kept)
        if self.slab is not None:
            with self.gate:
                self.slab.remove(keys, gone.take)
                for each in namespaces:
                    self.slab.remove_namespace(each, gone.take)
        submitted()
        if self.state is DiskState.ABSENT or (self.slab is not None and gone.wait()):
            self._kept.discard(gone)
            return True
        log.error("tier3_removal_failed", advice=KEPT)
        return False

    def use(self) -> DiskUse:
        """Returns what is there now, as one snapshot of the slab."""
        if self.slab is None:
            return DiskUse(self.state)
        use = self.slab.use()
        return DiskUse(self.state, self._size_bytes, use.page_count, use.slot_count, use.counters)

    def close(self) -> None:
        """Writes what waits, and gives the file up. Idempotent."""
        if self.slab is not None:
            self.slab.close()

    def _tell_lost(self, keys: Items[PageKey]) -> None:
        """Tell whoever listens now: the slab is open before anybody does."""
        self.lost(keys)
