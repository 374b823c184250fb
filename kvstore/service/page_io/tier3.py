"""Tier 3 as a whole: writes, reads and removals over one page store."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from threading import Lock
from typing import NamedTuple

from kvstore.core import Identity, PrefixCache
from kvstore.core.pool.arena import Arena
from kvstore.core.pool.disk_state import RemovedPrefix
from kvstore.core.values.page_hash import page_digests
from kvstore.service.clock import Clock
from kvstore.service.page_io.disk_reader import Loader
from kvstore.service.page_io.disk_writer import Keeper
from kvstore.service.page_io.slow_tier import REMOVAL_PATIENCE, SlowTier, TierUse
from kvstore.storage.memory_tiers import Tiers
from kvstore.storage.page_store import PageKey
from kvstore.storage.write_admission import SecondTouch, WriteAdmission


class Removals:
    """Removes from tier 3 the pages that the core removed. Thread-safe.

    ``mutex`` is the store's; it guards ``cache``.
    """

    def __init__(self, cache: PrefixCache, mutex: Lock, tier: SlowTier) -> None:
        self._cache = cache
        self._mutex = mutex
        self._tier = tier
        self._settling = Lock()

    def settle(self) -> bool:
        """Waits until no page removed before, by any caller, can return.

        Returns False if the disk fails to remove them in time. Its failure is logged and raises the
        alarm. Waits some seconds at most. Called without the store's mutex.
        """
        in_turn = self._settling.acquire(timeout=REMOVAL_PATIENCE)
        try:
            with self._mutex:
                removed = self._cache.take_removed()
            forgotten = not removed or self._forget(removed)
            # Another thread may hold removals that are older and still wait for the disk.
            return in_turn and forgotten
        finally:
            if in_turn:
                self._settling.release()

    def _forget(self, removed: list[RemovedPrefix]) -> bool:
        pages = [each for each in removed if each.page_digest is not None]
        return self._tier.remove(
            [PageKey(each.namespace_digest, each.page_digest or b"") for each in pages],
            [each.namespace_digest for each in removed if each.page_digest is None],
            lambda: self._submitted(removed),
        )

    def _submitted(self, removed: list[RemovedPrefix]) -> None:
        with self._mutex:
            self._cache.finish_removed(removed)


# Pages touched once that are remembered, some 200 bytes each.
REMEMBERED_TOUCHES = 1 << 18


class Tier3Use(NamedTuple):
    """The content of tier 3 and its loads.

    ``bandwidth`` is in bytes a second, 0 before the first.
    """

    disk: TierUse
    bandwidth: float
    declined_count: int


class Tier3:
    """The parts of tier 3, over one page store. Without one they do nothing. Thread-safe."""

    def __init__(
        self,
        cache: PrefixCache,
        mutex: Lock,
        *,
        memory: Tiers,
        tier: SlowTier,
        clock: Clock,
        took: Callable[[Arena], None],
        admission: WriteAdmission | None = None,
    ) -> None:
        """Makes the tier; without ``admission`` pages are written at their second touch."""
        if admission is None:
            admission = SecondTouch(REMEMBERED_TOUCHES)
        self.keeper = Keeper(
            cache, mutex, memory=memory, tier=tier, admission=admission, clock=clock
        )
        self.loader = Loader(cache, mutex, memory=memory, tier=tier, clock=clock, took=took)
        self.removals = Removals(cache, mutex, tier)
        self._cache = cache
        self._mutex = mutex
        self._tier = tier
        if tier.page_store is not None:
            tier.page_store.lost = self._lost

    @property
    def present(self) -> bool:
        """True if tier 3 exists. It may fail later."""
        return self._tier.page_store is not None

    def leading_tokens(self, identity: Identity, namespace_id: bytes, tokens: bytes) -> int:
        """Returns how many leading tokens of a sequence are stored for good, in whole pages.

        Raises NamespaceNotFound.
        """
        if self._tier.usable() is None:
            return 0
        with self._mutex:
            namespace = self._cache.namespace(identity, namespace_id)
            digest, width = namespace.digest, namespace.index.width
        whole = tokens[: len(tokens) // width * width]
        count = self._tier.look(digest, page_digests(digest, whole, width))
        return count * namespace.layout.page_tokens

    def use(self) -> Tier3Use:
        """Returns the current content."""
        return Tier3Use(self._tier.use(), self.loader.bandwidth, self.loader.declined_count)

    def _lost(self, keys: Items[PageKey]) -> None:
        """Allows pages that the page store lost to be written again."""
        with self._mutex:
            self._cache.forget_kept({each.namespace for each in keys}, self._tier.number)
