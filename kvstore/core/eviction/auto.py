"""The default: by age, which counts less for what came back before or is expected to.

Leaf tails are of a few kinds, by what is known of them. Each kind stands in an order
of its own by last use, and what goes is the oldest of that kind whose oldest is the
oldest of all, when its age is divided by the kind's weight. Weights are learned: as
ARC does (Megiddo, Modha: "ARC: a self-tuning, low overhead replacement cache", FAST
2003) they move by what comes back after it was evicted. A page of a kind that comes
back was evicted too early, so that kind's weight grows; an ordinary page that comes
back says so of all others. Hints only say which kind a page is. If they are wrong
their kind's weight goes to 1, an ordinary page's, and there it stays.
"""

from math import exp, log

from kvstore.core.eviction.order import HOT, Entry, LeafOrder
from kvstore.core.hints import ExpectedReuse
from kvstore.core.leaf import Leaf
from kvstore.core.steps import Tail

ORDINARY, SEEN, ONE_SHOT, EXPECTED = range(4)
KINDS = 4
# Where the weights start, and between what they may move.
FIRST = (1.0, 1.5, 0.1, 4.0)
LEAST = (1.0, 1.0, 1 / 64, 1.0)
MOST = (1.0, 64.0, 1.0, 64.0)
# How much of a weight a page that came back moves, at the least.
STEP = 0.0002
# Priorities beyond this are alike; each of them is worth so much of age.
MOST_PRIORITY = 3
PRIORITY_FACTOR = 4.0


class Auto(LeafOrder):
    """Ages weighted by kind: asked for before, hinted as one shot or as going on, or none."""

    def __init__(self) -> None:
        super().__init__()
        self._logs = [log(each) for each in FIRST]
        self._weights: dict[int, float] = {}

    @property
    def weights(self) -> tuple[float, ...]:
        """By kind, how much older than an ordinary page one of it may become."""
        return tuple(exp(each) for each in self._logs)

    def place(self, leaf: Leaf, tail: Tail) -> tuple[int, float]:
        """Return the queue of the tail's kind and priority."""
        del leaf
        hint = tail.hint
        kind = ORDINARY
        if tail.hits or hint.returned:
            kind = SEEN
        elif hint.expected_reuse and self.now <= hint.until:
            kind = ONE_SHOT if hint.expected_reuse is ExpectedReuse.ONE_SHOT else EXPECTED
        if hint.priority and self.now <= hint.until:
            kind += KINDS * max(-MOST_PRIORITY, min(hint.priority, MOST_PRIORITY))
        return kind, tail.last_use

    def choose(self, heads: list[Entry]) -> Entry:
        """Return the head of the greatest weighted age."""
        return max(heads, key=self._age)

    def learn(self, kind: int, pages: int) -> None:
        """Move the weights by pages that came back; the fewer of a kind left, the more."""
        if kind == HOT:
            return
        kind %= KINDS
        left = self.ghosts.by_kind
        ordinary = max(left.get(ORDINARY, 0), 1)
        for other in (SEEN, ONE_SHOT, EXPECTED):
            count = max(left.get(other, 0), 1)
            if kind == other:
                self._move(other, pages * max(1.0, ordinary / count))
            elif kind == ORDINARY:
                self._move(other, -pages * max(1.0, count / ordinary))

    def _move(self, kind: int, steps: float) -> None:
        moved = self._logs[kind] + STEP * steps
        self._logs[kind] = max(log(LEAST[kind]), min(moved, log(MOST[kind])))
        self._weights.clear()

    def _age(self, entry: Entry) -> float:
        """Return how long ago a head was used, divided by its queue's weight; least of the hot."""
        if entry.queue == HOT:
            return -1.0
        weight = self._weights.get(entry.queue)
        if weight is None:
            priority, kind = divmod(entry.queue, KINDS)
            weight = exp(self._logs[kind]) * PRIORITY_FACTOR**priority
            self._weights[entry.queue] = weight
        return (self.latest - entry.rank) / weight
