"""What an administrator asks of the store: what is there, and that a prefix go."""

from threading import Lock

from kvstore.core.cache import PrefixCache
from kvstore.core.caller import Identity
from kvstore.core.lease_stats import HoldStats, hold_stats
from kvstore.core.requests import Removed
from kvstore.core.stats import PrefixStats, Stats, prefixes, snapshot
from kvstore.service.clock import Clock


class Administration:
    """Statistics, lists and removals, under the mutex that all calls of a store share."""

    def __init__(self, cache: PrefixCache, mutex: Lock, clock: Clock) -> None:
        self._cache = cache
        self._mutex = mutex
        self._clock = clock

    def responds(self, timeout: float) -> bool:
        """Return whether the mutex could be had within ``timeout`` seconds: calls get through."""
        if not self._mutex.acquire(timeout=timeout):
            return False
        self._mutex.release()
        return True

    def evict_prefix(self, identity: Identity, namespace_id: bytes, tokens: bytes) -> Removed:
        """Remove all pages that hold a prefix's last token, and all that continues them."""
        with self._mutex:
            return self._cache.evict_prefix(identity, namespace_id, tokens)

    def stats(self, identity: Identity) -> Stats:
        """Return one consistent snapshot of what the identity may see."""
        with self._mutex:
            return snapshot(self._cache, identity, self._clock())

    def holds(self, identity: Identity, lease_id: bytes, tenant: str) -> list[HoldStats]:
        """Return what a lease holds, by number; raises LeaseNotFound or InvalidField."""
        with self._mutex:
            lease = self._cache.table.listed(identity, lease_id, tenant)
            return hold_stats(lease, self._clock())

    def prefixes(
        self, identity: Identity, namespace_id: bytes, *, after: int, count: int, max_tokens: int
    ) -> list[PrefixStats]:
        """Return up to ``count`` nodes of a namespace's tree with numbers above ``after``."""
        with self._mutex:
            namespace = self._cache.namespace(identity, namespace_id)
            return prefixes(namespace, after=after, count=count, max_tokens=max_tokens)
