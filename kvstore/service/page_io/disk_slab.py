"""Tier 3 as the store has it: an open slab, or the reason for its absence."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from enum import Enum
from threading import Event, Lock
from typing import NamedTuple, Self

import structlog

from kvstore.storage.errors import SlabInUse, SlabUnusable
from kvstore.storage.slab.header import PageKey
from kvstore.storage.slab.policy import SlabClock
from kvstore.storage.slab.slab import Slab, SlabConfig
from kvstore.storage.slab.tables import SlabCounters, SlabState

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Seconds that a call waits for the disk to remove pages.
REMOVAL_PATIENCE = 5.0
UNUSABLE = "the store goes on without tier 3 until it is started again; see the disk"
KEPT = "what was removed may return at the next start: remove the file before"


class DiskState(Enum):
    """The state of tier 3; FAILED raises the alarm."""

    ABSENT = "absent"
    OPEN = "open"
    FAILED = "failed"


class DiskUse(NamedTuple):
    """The content of tier 3 at one moment. Without an open slab all but ``state`` is zero."""

    state: DiskState
    size_bytes: int = 0
    page_count: int = 0
    slot_count: int = 0
    counters: SlabCounters = SlabCounters()


class _Gone:
    """Answers to the removals of one call. It stays among ``kept`` until all succeed."""

    def __init__(self, count: int, kept: "set[_Gone]") -> None:
        self._left = count
        self._mutex = Lock()
        self._answered = Event()
        self._kept = kept
        kept.add(self)

    def take(self, removed: bool) -> None:  # noqa: FBT001 - the slab's way to tell
        """Records an answer, which may come late."""
        with self._mutex:
            self._left -= removed
            last = not self._left
        if last:
            self._kept.discard(self)
        if last or not removed:
            self._answered.set()

    def wait(self) -> bool:
        """Waits for all answers, or the first failure; returns whether all succeeded."""
        self._answered.wait(REMOVAL_PATIENCE)
        with self._mutex:
            return not self._left


class Disk:
    """A slab for the store's threads. Thread-safe; only ``remove`` waits for the disk.

    ``gate`` orders writes and removals. A writer holds it while it checks that the page is still in
    the index and submits the page. A removal is submitted under it after the page left the index.
    Each removal therefore prevents the write or finds it under way.

    ``gate`` is taken before the store's mutex and before the slab's, never within either.
    """

    def __init__(self, slab: Slab | None = None, *, size_bytes: int = 0, why: str = "") -> None:
        """Makes a tier from a slab; without one there is no tier 3, for the reason given if any."""
        self.gate = Lock()
        self.slab = slab
        self.lost: Callable[[Items[PageKey]], None] = lambda _: None
        self._size_bytes = size_bytes
        self._why = why
        # Removals that have not succeeded.
        self._kept: set[_Gone] = set()

    @classmethod
    def open(cls, config: SlabConfig) -> Self:
        """Opens the slab; logs a failure and continues without tier 3.

        Raises ``SlabInUse`` if another process has the file.
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
        """The state of tier 3: if it takes and gives pages, and if its removals are reliable."""
        if self.slab is None:
            return DiskState.FAILED if self._why else DiskState.ABSENT
        usable = self.slab.state is SlabState.OPEN and not self._kept
        return DiskState.OPEN if usable else DiskState.FAILED

    def usable(self) -> Slab | None:
        """Returns the slab while it takes and gives pages."""
        slab = self.slab
        return slab if slab is not None and slab.state is SlabState.OPEN else None

    def leading(self, namespace: bytes, digests: Iterable[bytes]) -> int:
        """Returns how many pages of a path are stored for good, up to the first that is not."""
        slab = self.usable()
        return 0 if slab is None else slab.leading(PageKey(namespace, each) for each in digests)

    def remove(
        self, keys: Items[PageKey], namespaces: Items[bytes], submitted: Callable[[], None]
    ) -> bool:
        """Removes pages and their descendants, and namespaces by their digests.

        The caller removes them from the index before. ``submitted`` is called once no lookup finds
        them here. Waits for the disk, and returns whether they cannot return. If the disk refuses
        or is slow, a log line and the alarm say so. Called without the store's mutex.
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
        """Returns the current content, as one snapshot of the slab."""
        if self.slab is None:
            return DiskUse(self.state)
        use = self.slab.use()
        return DiskUse(self.state, self._size_bytes, use.page_count, use.slot_count, use.counters)

    def close(self) -> None:
        """Writes the queued pages, and closes the file. Idempotent."""
        if self.slab is not None:
            self.slab.close()

    def _tell_lost(self, keys: Items[PageKey]) -> None:
        """Passes losses to the listener from now on. The slab opens before anything listens."""
        self.lost(keys)
