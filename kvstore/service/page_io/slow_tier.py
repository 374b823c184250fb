"""A page store as the store's threads use it, or the reason for its absence."""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from enum import Enum
from itertools import takewhile
from math import inf
from threading import Event, Lock
from typing import NamedTuple, Protocol, runtime_checkable

import structlog

from kvstore.core.index.path_hashes import PageName
from kvstore.remote.remote_use import RemoteUse
from kvstore.service.clock import MONOTONIC
from kvstore.service.page_io.remote_facts import RemoteFacts
from kvstore.storage.page_store import (
    PageKey,
    PageStore,
    Presence,
    SharedPageStore,
    StoreCounters,
    StoreState,
)
from kvstore.storage.write_admission import SecondTouch, WriteAdmission

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Seconds that a call waits for pages to be removed.
REMOVAL_PATIENCE = 5.0
# Pages touched once that are remembered for a page store, some 200 bytes each.
REMEMBERED_TOUCHES = 1 << 18


class TierKind(Enum):
    """The kinds of page stores. The values are those of metrics and logs."""

    SLAB = "slab"
    REMOTE = "remote"


REMAINS = {
    TierKind.SLAB: "what was removed may return at the next start: remove the file before",
    TierKind.REMOTE: "other hosts may find what was removed until the remote engine answers again",
}


class TierState(Enum):
    """The state of a page store in a store; FAILED raises the alarm."""

    ABSENT = "absent"
    OPEN = "open"
    AWAY = "away"
    """It answers nothing at present, and becomes OPEN by itself."""
    FAILED = "failed"


@runtime_checkable
class CountsRemoteUse(Protocol):
    """A page store that counts what it does with an engine."""

    def remote_use(self) -> RemoteUse:
        """Returns the counts now."""
        ...


class TierUse(NamedTuple):
    """The content of a page store at one moment. Without one all but ``state`` is zero.

    ``remote`` is None for one of this host alone.
    """

    state: TierState
    size_bytes: int = 0
    page_count: int = 0
    slot_count: int = 0
    counters: StoreCounters = StoreCounters()
    remote: RemoteUse | None = None


class _Removal:
    """The answers to one removal. It stays among ``kept`` until all of them are good."""

    def __init__(self, count: int, kept: "set[_Removal]") -> None:
        self._until = MONOTONIC() + REMOVAL_PATIENCE
        self._left = count
        self._mutex = Lock()
        self._answered = Event()
        self._kept = kept
        self._was_told = False
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
        """Waits for all answers, the first failure or the end of its time.

        Returns whether all answers are good.
        """
        self._answered.wait(max(self._until - MONOTONIC(), 0.0))
        with self._mutex:
            return not self._left

    def is_news(self) -> bool:
        """Returns True the first time."""
        with self._mutex:
            was_told, self._was_told = self._was_told, True
        return not was_told


class SlowTier:
    """A page store for the store's threads. Thread-safe; only lookups and ``settled`` wait for it.

    ``gate`` orders writes and removals. A writer holds it while it checks that the page is still in
    the index and submits the page. A removal is submitted under it after the page left the index.
    Each removal therefore prevents the write or finds it under way.

    ``gate`` is taken before the store's mutex and before the page store's, never within either.
    """

    def __init__(
        self,
        page_store: PageStore | None = None,
        *,
        why: str = "",
        number: int = 0,
        admission: WriteAdmission | None = None,
        is_written: bool = True,
        about: RemoteFacts | None = None,
    ) -> None:
        """Makes a tier; without a page store it is absent, for the reason given if any.

        The core knows the page store by its ``number``. Pages are written as ``admission`` says, or
        at their second touch without one. Nothing is written if it is not ``is_written``. A remote
        tier has facts ``about`` its engine.
        """
        self.gate = Lock()
        self.number = number
        self.page_store = page_store
        self.admission = admission or SecondTouch(REMEMBERED_TOUCHES)
        self.is_written = is_written
        self.about = about
        self._why = why
        # Removals that have not succeeded.
        self._kept: set[_Removal] = set()

    @property
    def is_shared(self) -> bool:
        """True if other hosts use the page store too."""
        return self.page_store is not None and self.page_store.facts.shared

    @property
    def kind(self) -> TierKind:
        """The kind of the page store. One that is absent would be the slab."""
        return TierKind.REMOTE if self.is_shared else TierKind.SLAB

    @property
    def state(self) -> TierState:
        """The state: if it takes and gives pages, and if its removals are reliable."""
        if self.page_store is None:
            return TierState.FAILED if self._why else TierState.ABSENT
        if self.page_store.state is StoreState.AWAY:
            return TierState.AWAY
        usable = self.page_store.state is StoreState.OPEN and not self._kept
        return TierState.OPEN if usable else TierState.FAILED

    def usable(self) -> PageStore | None:
        """Returns the page store while it takes and gives pages."""
        page_store = self.page_store
        is_open = page_store is not None and page_store.state is StoreState.OPEN
        return page_store if is_open else None

    def look(self, namespace: bytes, names: Iterable[PageName], deadline: float = inf) -> int:
        """Returns how many pages of a path are stored for good, up to the first that is not."""
        page_store = self.usable()
        if page_store is None:
            return 0
        return page_store.look((PageKey(namespace, *each) for each in names), deadline)

    def stored(self, namespace: bytes, names: Iterable[PageName]) -> int:
        """Returns how many pages of a path are stored, up to the first that is not. May wait.

        Asks for all of them, also if a miss is likely, and counts as a use of the pages.
        """
        page_store = self.usable()
        if page_store is None:
            return 0
        found = page_store.there([PageKey(namespace, *each) for each in names])
        return sum(1 for _ in takewhile(lambda each: each is Presence.STORED, found))

    def remove(
        self, keys: Items[PageKey], namespaces: Items[bytes], corrupt: Items[PageKey] = ()
    ) -> None:
        """Submits the removal of pages and their descendants, and of namespaces by their digests.

        ``corrupt`` are pages that changed in memory, and for which a shared page store limits what
        one host can do to all. The caller removes them from the index before. No lookup that begins
        later finds them here, and no write that began before stores them. Called without the
        store's mutex.
        """
        page_store = self.page_store
        with self.gate:
            if page_store is None or not (keys or namespaces or corrupt):
                return
            shared = page_store if isinstance(page_store, SharedPageStore) else None
            if shared is None:
                keys, corrupt = [*keys, *corrupt], ()
            removal = _Removal(bool(keys) + len(namespaces) + bool(corrupt), self._kept)
            if shared is not None and corrupt:
                shared.remove_corrupt(corrupt, removal.take)
            if keys:
                page_store.remove(keys, removal.take)
            for each in namespaces:
                page_store.remove_namespace(each, removal.take)

    def settled(self) -> bool:
        """Waits for all removals so far, each for ``REMOVAL_PATIENCE`` at most since it began.

        Returns whether none of their pages can return. If the page store refuses or is slow, a log
        line says so, once for each removal, and the state does too. Called without the store's
        mutex.
        """
        left = [each for each in list(self._kept) if not each.wait()]
        news = [each for each in left if each.is_news()]
        if news:
            kind = self.kind
            log.error("tier3_removal_failed", store=kind.value, advice=REMAINS[kind])
        return not left

    def use(self) -> TierUse:
        """Returns the current content, as one snapshot of the page store."""
        if self.page_store is None:
            return TierUse(self.state)
        _, size_bytes, page_count, slot_count, _, counters = self.page_store.use()
        store = self.page_store
        remote = store.remote_use() if isinstance(store, CountsRemoteUse) else None
        return TierUse(self.state, size_bytes, page_count, slot_count, counters, remote)

    def close(self) -> None:
        """Closes the page store, which first writes what it queued. Idempotent."""
        if self.page_store is not None:
            self.page_store.close()
