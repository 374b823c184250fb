"""Leaf tails, the deepest page first."""

from kvstore.core.eviction.order import USES, LeafOrder
from kvstore.core.index.usage import Tail
from kvstore.core.leaf import Leaf


class DeepestLevel(LeafOrder):
    """By pages from the beginning, and among equals by last use."""

    # The next page of the same leaf is a level higher.
    one_by_one = True

    def place(self, leaf: Leaf, tail: Tail) -> tuple[int, float]:
        """Return a rank that is lower the deeper the tail ends."""
        return 0, tail.last_use - (leaf.start + tail.end) * USES
