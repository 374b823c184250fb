"""What an administrator asks of the store: what is there, and that a prefix go."""

from array import array
from collections.abc import Sequence as Items
from threading import Lock
from time import sleep
from typing import NamedTuple

from kvstore.core import Identity, PrefixCache, Removed
from kvstore.core.leases.lease import LeaseState
from kvstore.core.stats import (
    HoldStats,
    PrefixStats,
    Stats,
    first_tokens,
    hold_stats,
    overdue_holds,
    prefixes,
    snapshot,
    tree_rows,
)
from kvstore.core.values.counters import Counters
from kvstore.core.values.events import Cause
from kvstore.service.clock import Clock

# Nodes of a tree that are read while all calls wait: two milliseconds.
ROWS_AT_ONCE = 1000
# Seconds that the mutex is left alone in between: whoever waits for it gets it.
ROWS_PAUSE = 0.0005
# Nodes of a tree that go while all calls wait: some milliseconds.
NODES_AT_ONCE = 64
NOTHING = Removed(0, 0)


class Totals(NamedTuple):
    """What was counted by one moment: everything, and how often pages were used."""

    counters: Counters
    use_count: int


class Administration:
    """Statistics, lists and removals, under the mutex that all calls of a store share."""

    def __init__(self, cache: PrefixCache, mutex: Lock, clock: Clock) -> None:
        self._cache = cache
        self._mutex = mutex
        self._clock = clock

    def responds(self, timeout: float) -> bool:
        """Returns whether the mutex could be had within ``timeout`` seconds: calls get through."""
        if not self._mutex.acquire(timeout=timeout):
            return False
        self._mutex.release()
        return True

    def evict_prefix(self, identity: Identity, namespace_id: bytes, tokens: bytes) -> Removed:
        """Removes all pages that hold a prefix's last token, and all that continues them.

        The mutex is taken for a part of many at a time: calls go on meanwhile, and find what is
        left.
        """
        before = self._thin(identity, namespace_id, tokens, Cause.REMOVED)
        with self._mutex:
            self._cache.events.now = self._clock()
            return before.plus(self._cache.evict_prefix(identity, namespace_id, tokens))

    def delete_namespace(self, identity: Identity, namespace_id: bytes) -> Removed:
        """Forgets a namespace with all its pages; raises NamespaceNotFound.

        A large one goes part by part, as in ``evict_prefix``.
        """
        before = self._thin(identity, namespace_id, b"", Cause.NAMESPACE_DELETED)
        with self._mutex:
            self._cache.events.now = self._clock()
            return before.plus(self._cache.delete_namespace(identity, namespace_id))

    def _thin(
        self, identity: Identity, namespace_id: bytes, tokens: bytes, cause: Cause
    ) -> Removed:
        """Removes nearly all that ``evict_prefix`` would, part by part; returns what went."""
        removed = NOTHING
        with self._mutex:
            count = len(self._cache.namespace(identity, namespace_id).index.nodes)
        # Each part has a node at least; what comes meanwhile cannot make it go on for ever.
        for _ in range(count):
            with self._mutex:
                self._cache.events.now = self._clock()
                part = self._cache.thin(identity, namespace_id, tokens, NODES_AT_ONCE, cause)
            if part is None:
                break
            removed = removed.plus(part)
            sleep(ROWS_PAUSE)
        return removed

    def stats(self, identity: Identity) -> Stats:
        """Returns one consistent snapshot of what the identity may see."""
        with self._mutex:
            return snapshot(self._cache, identity, self._clock())

    def holds(self, identity: Identity, lease_id: bytes, tenant: str) -> list[HoldStats]:
        """Returns what a lease holds, by number; raises LeaseNotFound or InvalidField."""
        with self._mutex:
            lease = self._cache.table.listed(identity, lease_id, tenant)
            return hold_stats(lease, self._clock())

    def prefixes(
        self, identity: Identity, namespace_id: bytes, *, after: int, count: int, max_tokens: int
    ) -> list[PrefixStats]:
        """Returns up to ``count`` nodes of a namespace's tree with numbers above ``after``."""
        with self._mutex:
            namespace = self._cache.namespace(identity, namespace_id)
            return prefixes(namespace, after=after, count=count, max_tokens=max_tokens)

    def totals(self) -> Totals:
        """Returns the store's counters, of all tenants. The cost is that of a copy of them."""
        with self._mutex:
            return Totals(self._cache.counters.copy(), self._cache.state.use_count)

    def tree_rows(self, identity: Identity, namespace_id: bytes) -> "array[int]":
        """Returns a namespace's tree, a row for each node, as ``core.tree_rows`` has them.

        The mutex is taken for a part at a time, so calls go on meanwhile, and what they change
        is in the answer or not: a picture of the tree, and no snapshot. Raises NamespaceNotFound.
        """
        with self._mutex:
            namespace = self._cache.namespace(identity, namespace_id)
            numbers = list(namespace.index.nodes)
            leases = self._cache.table.leases.values()
            late = [each for each in leases if each.state is LeaseState.EXPIRED]
            overdue = overdue_holds(late, namespace)
        rows = array("q")
        for first in range(0, len(numbers), ROWS_AT_ONCE):
            part = numbers[first : first + ROWS_AT_ONCE]
            with self._mutex:
                rows += tree_rows(namespace, part, numbers[-1], overdue)
            sleep(ROWS_PAUSE)
        return rows

    def first_tokens(
        self, identity: Identity, namespace_id: bytes, numbers: Items[int], max_tokens: int
    ) -> dict[int, bytes]:
        """Returns the first tokens of some nodes of a namespace; raises NamespaceNotFound."""
        with self._mutex:
            namespace = self._cache.namespace(identity, namespace_id)
            return first_tokens(namespace, numbers, max_tokens)
