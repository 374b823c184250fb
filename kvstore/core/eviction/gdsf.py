"""Greedy dual, size and frequency: what is cheap to compute again goes first.

Cherkasova, "Improving WWW proxies performance with greedy-dual-size-frequency caching
policy", HPL-98-69, 1998: a page's value is its uses times its cost, above a level that
rises to the value of what was evicted last, so that everything ages.
"""

from bisect import bisect_right

from kvstore.core.eviction.order import LeafOrder
from kvstore.core.eviction.policy import Victim
from kvstore.core.index.usage import Tail
from kvstore.core.leaf import Leaf
from kvstore.core.values.tokens import TOKEN_BYTES

# Tokens of context at which attention costs as much as all else: for a model of 8
# billion weights and 32 layers of 4,096, 2 * 8e9 / (4 * 4,096 * 32) operations.
ATTENTION_TOKENS = 30_000
# Changes of the level that are remembered; older uses count as if at the first of them.
MAX_LEVELS = 4096


class GreedyDual(LeafOrder):
    """By the level at the last use, plus uses times the cost of computing the page again.

    All pages of an arena have one size. The cost of a token is 1, and as much again
    for each ``ATTENTION_TOKENS`` before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._uses = [0]
        self._levels = [0.0]

    def place(self, leaf: Leaf, tail: Tail) -> tuple[int, float]:
        """Return the value of the tail's last page as its rank."""
        tokens = (leaf.start + tail.end) * leaf.node.tree.width // TOKEN_BYTES
        cost = 1 + tokens / ATTENTION_TOKENS
        level = self._levels[max(bisect_right(self._uses, tail.last_use) - 1, 0)]
        return 0, level + (1 + tail.hits) * cost

    def nominate(self, pages: int) -> list[Victim]:
        """Nominate, and let the level rise to what goes."""
        victims = super().nominate(pages)
        if victims:
            tails = [(each.leaf, each.leaf.tail()) for each in victims]
            level = max(self.place(leaf, tail)[1] for leaf, tail in tails)
            if level > self._levels[-1]:
                self._uses.append(self.latest)
                self._levels.append(level)
            if len(self._levels) > MAX_LEVELS:
                del self._uses[: MAX_LEVELS // 2], self._levels[: MAX_LEVELS // 2]
        return victims
