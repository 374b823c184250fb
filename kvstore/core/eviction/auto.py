"""The default: by age, which counts less for what came back before or is expected to.

Leaf tails are of a few kinds, by what is known of them. Each kind stands in an order
of its own by last use, and what goes is the oldest of that kind whose oldest is the
oldest of all, when its age is divided by the kind's weight. Weights are learned: as
ARC does (Megiddo, Modha: "ARC: a self-tuning, low overhead replacement cache", FAST
2003) they move by what comes back after it was evicted: its kind went too early, and
each other kind of which something is remembered had a place that it should have had,
so the one's weight grows against the others'. Hints only say which kind a page is. If
they are wrong their kind's weight goes to 1, an ordinary page's, and there it stays.
"""

from math import exp, log

from kvstore.core.eviction.order import HOT, LeafOrder
from kvstore.core.eviction.queue import Entry
from kvstore.core.index.usage import Tail
from kvstore.core.leaf import Leaf
from kvstore.core.values.requests import ExpectedReuse

ORDINARY, SEEN, ONE_SHOT, EXPECTED = range(4)
KINDS = 4
HINTED = (ONE_SHOT, EXPECTED)
# Where the weights start, and between what they may move.
FIRST = (1.0, 1.5, 0.5, 1.5)
LEAST = (1.0, 1.0, 1 / 64, 1.0)
# Weights where another tier takes in what goes: what was seen and stays up while what continues
# it goes down is there twice, since a page goes down with all above it.
SPILLING = (1.0, 1.0, 0.5, 1.5)
MOST = (1.0, 64.0, 1.0, 64.0)
# How much of a weight a page that came back moves, at the least; faster where it is a
# hint's, whose worth is a caller's and not known before, and then so many times as fast at most.
STEP = 0.0002
HINT_STEP = 0.001
MOST_STEPS = 64
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
        return SPILLING if self.spills else tuple(exp(each) for each in self._logs)

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
        left = [0] * KINDS
        for queue, count in self.ghosts.by_kind.items():
            if queue != HOT:
                left[queue % KINDS] += count
        for other, count in enumerate(left):
            if count and other != kind:
                self._weigh(kind, other, pages, count / max(left[kind], 1))
        self._weights.clear()

    def _weigh(self, kind: int, other: int, pages: int, ratio: float) -> None:
        """Move one kind up against another, of which ``ratio`` times as many are remembered."""
        steps = pages * max(1.0, ratio)
        if kind in HINTED or other in HINTED:
            steps = HINT_STEP * min(steps, pages * MOST_STEPS)
        else:
            steps *= STEP
        # An ordinary page's weight stays 1.
        if ORDINARY not in (kind, other):
            steps /= 2
        for each, change in ((kind, steps), (other, -steps)):
            if each != ORDINARY:
                moved = self._logs[each] + change
                self._logs[each] = max(log(LEAST[each]), min(moved, log(MOST[each])))

    def _age(self, entry: Entry) -> float:
        """Return how long ago a head was used, divided by its queue's weight; least of the hot."""
        if entry.queue == HOT:
            return -1.0
        weight = self._weights.get(entry.queue)
        if weight is None:
            priority, kind = divmod(entry.queue, KINDS)
            weight = self.weights[kind] * PRIORITY_FACTOR**priority
            self._weights[entry.queue] = weight
        return (self.latest - entry.rank) / weight
