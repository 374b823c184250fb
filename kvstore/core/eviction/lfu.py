"""Leaf tails, the least often asked for first."""

from kvstore.core.eviction.order import USES, LeafOrder
from kvstore.core.index.usage import Tail
from kvstore.core.leaf import Leaf


class LeastFrequentlyUsed(LeafOrder):
    """By hits, and among equals by last use. Hits are forgotten as a page goes."""

    def place(self, leaf: Leaf, tail: Tail) -> tuple[int, float]:
        """Return a rank that is higher the more hits there are."""
        del leaf
        return 0, tail.hits * USES + tail.last_use
