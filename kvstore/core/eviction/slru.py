"""Segmented least recently used: what was never hit goes first, within bounds."""

from kvstore.core.eviction.order import LeafOrder
from kvstore.core.eviction.queue import Entry
from kvstore.core.index.usage import Tail
from kvstore.core.leaf import Leaf

PROBATION, PROTECTED = 0, 1
# The protected segment's part of all entries beyond which it gives up its oldest.
PROTECTED_SHARE = 0.8


class Segmented(LeafOrder):
    """Two segments, each by last use: tails never asked for again, and those that were.

    The protected one is bounded, so that what was once in use does not stay for ever.
    """

    def place(self, leaf: Leaf, tail: Tail) -> tuple[int, float]:
        """Return the segment of the tail."""
        del leaf
        return PROTECTED if tail.hits else PROBATION, tail.last_use

    def choose(self, heads: list[Entry]) -> Entry:
        """Return the oldest of probation, or of the protected segment if it is too large."""
        sizes = {each.queue: len(self.queues.get(each.queue, ())) for each in heads}
        protected, probation = sizes.get(PROTECTED, 0), sizes.get(PROBATION, 0)
        if protected > PROTECTED_SHARE * (protected + probation):
            return min((each for each in heads if each.queue == PROTECTED), default=heads[0])
        return super().choose(heads)
