"""Leaf tails, the least recently used first."""

from kvstore.core.eviction.order import LeafOrder
from kvstore.core.index.usage import Tail
from kvstore.core.leaf import Leaf


class LeastRecentlyUsed(LeafOrder):
    """By last use."""

    def place(self, leaf: Leaf, tail: Tail) -> tuple[int, float]:
        """Return the tail's last use as its rank."""
        del leaf
        return 0, tail.last_use
