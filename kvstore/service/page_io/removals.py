"""Removals: what left the index leaves all page stores; what other hosts removed leaves here."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from functools import partial
from threading import Lock

from kvstore.core import PrefixCache, Removed
from kvstore.service.page_io.slow_tier import SlowTier
from kvstore.storage.errors import RemovalUnsettled
from kvstore.storage.page_store import PageKey, SharedPageStore


class TierRemovals:
    """Submits to one page store the removals that the core owes it. Thread-safe.

    ``mutex`` is the store's; it guards ``cache``.
    """

    def __init__(self, cache: PrefixCache, mutex: Lock, tier: SlowTier) -> None:
        self.tier = tier
        self._cache = cache
        self._mutex = mutex
        # A caller whose removals another one took waits until these are submitted.
        self._submitting = Lock()

    def submit(self) -> None:
        """Submits all removals by now, which hides their pages. Called without the mutex."""
        number = self.tier.number
        with self._submitting:
            with self._mutex:
                owed = self._cache.take_removed(number)
            if not owed:
                return
            # A page store that removed the pages before only has to know of the writes before it.
            mine = [each for each in owed if each.known_to != number]
            pages = [
                (PageKey(each.namespace_digest, each.page_digest), each.is_corrupt)
                for each in mine
                if each.page_digest is not None
            ]
            self.tier.remove(
                [key for key, is_corrupt in pages if not is_corrupt],
                [each.namespace_digest for each in mine if each.page_digest is None],
                [key for key, is_corrupt in pages if is_corrupt],
            )
            with self._mutex:
                self._cache.finish_removed(owed, number)


class Removals:
    """Removes from the page stores the pages that the core removed. Thread-safe.

    No page store waits for another one. ``revise`` removes all pages of a namespace from the core,
    by its digest, and notes that the page store of a number knows of it.
    """

    def __init__(
        self,
        cache: PrefixCache,
        mutex: Lock,
        tiers: Items[SlowTier],
        revise: Callable[[bytes, int], Removed],
    ) -> None:
        self._cache = cache
        self._mutex = mutex
        present = [each for each in tiers if each.page_store is not None]
        self._parts = [TierRemovals(cache, mutex, each) for each in present]
        self._revise = revise
        for tier in present:
            if isinstance(tier.page_store, SharedPageStore):
                tier.page_store.revised = partial(self.revised, number=tier.number)
                tier.page_store.in_use = self._in_use

    def settle(self, *, waits_for_shared: bool = True) -> bool:
        """Waits until no page removed before, by any caller, can return.

        Returns False if a page store fails to remove them in time. Its failure is logged, and its
        state shows it. Waits some seconds at most, and without ``waits_for_shared`` only for the
        page stores of this host alone. Called without the store's mutex.
        """
        for part in self._parts:
            part.submit()
        tiers = [part.tier for part in self._parts]
        waited = [each for each in tiers if waits_for_shared or not each.is_shared]
        answers = [each.settled() for each in waited]
        return all(answers)

    def revised(self, namespace_digest: bytes, number: int) -> None:
        """Removes a namespace's pages from this host, since another host removed some for all.

        Page store ``number`` heard of it. It takes no page any more that was there before, and no
        load under way publishes one. Raises ``RemovalUnsettled`` if another page store may have
        them again after a restart.
        """
        self._revise(namespace_digest, number)
        if not self.settle(waits_for_shared=False):
            raise RemovalUnsettled

    def _in_use(self) -> list[bytes]:
        """Returns the digests of this host's namespaces."""
        with self._mutex:
            disk = self._cache.state.disk
            return [] if disk is None else list(disk.namespaces)
