"""Tier 3 as the store has it: a page store, or the reason for its absence."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from enum import Enum
from math import inf
from threading import Event, Lock
from typing import NamedTuple

import structlog

from kvstore.storage.page_store import PageKey, PageStore, StoreCounters, StoreState

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Seconds that a call waits for pages to be removed.
REMOVAL_PATIENCE = 5.0
KEPT = "what was removed may return at the next start: remove the file before"


class TierState(Enum):
    """The state of tier 3; FAILED raises the alarm."""

    ABSENT = "absent"
    OPEN = "open"
    FAILED = "failed"


class TierUse(NamedTuple):
    """The content of tier 3 at one moment. Without a page store all but ``state`` is zero."""

    state: TierState
    size_bytes: int = 0
    page_count: int = 0
    slot_count: int = 0
    counters: StoreCounters = StoreCounters()


class _Gone:
    """Answers to the removals of one call. It stays among ``kept`` until all succeed."""

    def __init__(self, count: int, kept: "set[_Gone]") -> None:
        self._left = count
        self._mutex = Lock()
        self._answered = Event()
        self._kept = kept
        kept.add(self)

    def take(self, removed: bool) -> None:  # noqa: FBT001 - as the page store tells
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


class SlowTier:
    """A page store for the store's threads. Thread-safe; only lookups and ``remove`` wait for it.

    ``gate`` orders writes and removals. A writer holds it while it checks that the page is still in
    the index and submits the page. A removal is submitted under it after the page left the index.
    Each removal therefore prevents the write or finds it under way.

    ``gate`` is taken before the store's mutex and before the page store's, never within either.
    """

    def __init__(
        self, page_store: PageStore | None = None, *, why: str = "", number: int = 0
    ) -> None:
        """Makes a tier; without a page store there is no tier 3, for the reason given if any.

        The core knows the page store by its ``number``.
        """
        self.gate = Lock()
        self.number = number
        self.page_store = page_store
        self._why = why
        # Removals that have not succeeded.
        self._kept: set[_Gone] = set()

    @property
    def state(self) -> TierState:
        """The state of tier 3: if it takes and gives pages, and if its removals are reliable."""
        if self.page_store is None:
            return TierState.FAILED if self._why else TierState.ABSENT
        usable = self.page_store.state is StoreState.OPEN and not self._kept
        return TierState.OPEN if usable else TierState.FAILED

    def usable(self) -> PageStore | None:
        """Returns the page store while it takes and gives pages."""
        page_store = self.page_store
        is_open = page_store is not None and page_store.state is StoreState.OPEN
        return page_store if is_open else None

    def look(self, namespace: bytes, digests: Iterable[bytes], deadline: float = inf) -> int:
        """Returns how many pages of a path are stored for good, up to the first that is not."""
        page_store = self.usable()
        if page_store is None:
            return 0
        return page_store.look((PageKey(namespace, each) for each in digests), deadline)

    def remove(
        self, keys: Items[PageKey], namespaces: Items[bytes], submitted: Callable[[], None]
    ) -> bool:
        """Removes pages and their descendants, and namespaces by their digests.

        The caller removes them from the index before. ``submitted`` is called once no lookup finds
        them here. Waits for the page store, and returns whether they cannot return. If it refuses
        or is slow, a log line and the alarm say so. Called without the store's mutex.
        """
        gone = _Gone(1 + len(namespaces), self._kept)
        if self.page_store is not None:
            with self.gate:
                self.page_store.remove(keys, gone.take)
                for each in namespaces:
                    self.page_store.remove_namespace(each, gone.take)
        submitted()
        if self.state is TierState.ABSENT or (self.page_store is not None and gone.wait()):
            self._kept.discard(gone)
            return True
        log.error("tier3_removal_failed", advice=KEPT)
        return False

    def use(self) -> TierUse:
        """Returns the current content, as one snapshot of the page store."""
        if self.page_store is None:
            return TierUse(self.state)
        _, size_bytes, page_count, slot_count, _, counters = self.page_store.use()
        return TierUse(self.state, size_bytes, page_count, slot_count, counters)

    def close(self) -> None:
        """Closes the page store, which first writes what it queued. Idempotent."""
        if self.page_store is not None:
            self.page_store.close()
