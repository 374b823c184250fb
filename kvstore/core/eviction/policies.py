"""The eviction policies, and their names."""

from bisect import bisect_right
from math import exp, log

from kvstore.core.eviction.leaf_order import HOT, USES, Entry, LeafOrder
from kvstore.core.eviction.protocol import Leaf, PolicyFactory, Victim
from kvstore.core.index.usage import Tail
from kvstore.core.values.requests import ExpectedReuse
from kvstore.core.values.tokens import TOKEN_BYTES


class LeastRecentlyUsed(LeafOrder):
    """Orders leaf tails by last use."""

    def place(self, leaf: Leaf, tail: Tail) -> tuple[int, float]:
        """Returns the tail's last use as its rank."""
        del leaf
        return 0, tail.last_use


class LeastFrequentlyUsed(LeafOrder):
    """Orders leaf tails by hits, then by last use. A page's hits are forgotten as it leaves."""

    def place(self, leaf: Leaf, tail: Tail) -> tuple[int, float]:
        """Returns a rank that is higher the more hits there are."""
        del leaf
        return 0, tail.hits * USES + tail.last_use


class DeepestLevel(LeafOrder):
    """Orders leaf tails by depth, the deepest first, then by last use."""

    # The next page of the same leaf is one level higher.
    one_by_one = True

    def place(self, leaf: Leaf, tail: Tail) -> tuple[int, float]:
        """Returns a rank that is lower the deeper the tail ends."""
        return 0, tail.last_use - (leaf.start + tail.end) * USES


PROBATION, PROTECTED = 0, 1
# Beyond this part of all entries, the protected segment gives up its oldest.
PROTECTED_SHARE = 0.8


class Segmented(LeafOrder):
    """Segmented least recently used: tails that were never hit go first, within bounds.

    There are two segments, each in the order of last use: tails that nobody asked for again,
    and the others. The second is bounded, so pages that were once in use do not stay for ever.
    """

    def place(self, leaf: Leaf, tail: Tail) -> tuple[int, float]:
        """Returns the tail's segment."""
        del leaf
        return PROTECTED if tail.hits else PROBATION, tail.last_use

    def choose(self, heads: list[Entry]) -> Entry:
        """Returns the oldest entry of probation, or of a protected segment that is too large."""
        sizes = {each.queue: len(self.queues.get(each.queue, ())) for each in heads}
        protected, probation = sizes.get(PROTECTED, 0), sizes.get(PROBATION, 0)
        if protected > PROTECTED_SHARE * (protected + probation):
            return min((each for each in heads if each.queue == PROTECTED), default=heads[0])
        return super().choose(heads)


# With this many tokens of context, attention costs as much as everything else. For a model of
# 8 billion weights and 32 layers of 4,096 that is 2 * 8e9 / (4 * 4,096 * 32).
ATTENTION_TOKENS = 30_000
# The most changes of the level that are remembered. Older uses count as at the first of them.
MAX_LEVELS = 4096


class GreedyDual(LeafOrder):
    """Greedy dual, by size and frequency: pages that are cheap to compute again go first.

    Cherkasova, "Improving WWW proxies performance with greedy-dual-size-frequency caching
    policy", HPL-98-69, 1998: a page's value is its uses times its cost, above a level that
    rises to the value of the last evicted page, so that everything ages. All pages of an arena
    have one size. A token costs 1, and 1 more for each ``ATTENTION_TOKENS`` before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._uses = [0]
        self._levels = [0.0]

    def place(self, leaf: Leaf, tail: Tail) -> tuple[int, float]:
        """Returns the value of the tail's last page as its rank."""
        tokens = (leaf.start + tail.end) * leaf.node.tree.width // TOKEN_BYTES
        cost = 1 + tokens / ATTENTION_TOKENS
        level = self._levels[max(bisect_right(self._uses, tail.last_use) - 1, 0)]
        return 0, level + (1 + tail.hits) * cost

    def nominate(self, pages: int) -> list[Victim]:
        """Nominates victims and raises the level to their value."""
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


ORDINARY, SEEN, ONE_SHOT, EXPECTED = range(4)
KINDS = 4
HINTED = (ONE_SHOT, EXPECTED)
# The weights at the start, and their bounds.
FIRST = (1.0, 1.5, 0.5, 1.5)
LEAST = (1.0, 1.0, 1 / 64, 1.0)
# The weights if another tier receives what goes. A page goes down with everything above it, so
# a page that was seen before and stays up is often there twice.
SPILLING = (1.0, 1.0, 0.5, 1.5)
MOST = (1.0, 64.0, 1.0, 64.0)
# The least change of a weight for each page that came back. Kinds made by a hint move faster,
# since a caller's hint is of unknown worth, and at most this many times as fast.
STEP = 0.0002
HINT_STEP = 0.001
MOST_STEPS = 64
# Priorities beyond this are alike. Each step of priority multiplies the age by this factor.
MOST_PRIORITY = 3
PRIORITY_FACTOR = 4.0


class Auto(LeafOrder):
    """The default: by age, which counts less for pages that came back or are expected to.

    Leaf tails are of a few kinds: asked for before, hinted as one shot, hinted as going on, or
    none of these. Each kind has a queue of its own by last use. The victim is the oldest of the
    kind whose oldest has the greatest age, once that is divided by the kind's weight.

    The weights are learned, as in ARC (Megiddo, Modha: "ARC: a self-tuning, low overhead
    replacement cache", FAST 2003), from evicted pages that come back. Such a page went too
    early, so its kind's weight grows against those of other kinds with remembered pages. A hint
    only says which kind a page is. If hints are wrong, the weight of their kind falls to 1,
    that of an ordinary page, and stays there.
    """

    def __init__(self) -> None:
        super().__init__()
        self._logs = [log(each) for each in FIRST]
        self._weights: dict[int, float] = {}

    @property
    def weights(self) -> tuple[float, ...]:
        """For each kind, how much older than an ordinary page one of it may become."""
        return SPILLING if self.spills else tuple(exp(each) for each in self._logs)

    def place(self, leaf: Leaf, tail: Tail) -> tuple[int, float]:
        """Returns the queue of the tail's kind and priority."""
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
        """Returns the head with the greatest weighted age."""
        return max(heads, key=self._age)

    def learn(self, kind: int, pages: int) -> None:
        """Moves the weights by pages that came back; the more, the fewer of their kind are left."""
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
        """Moves one kind up against another, of which ``ratio`` times as many are remembered."""
        steps = pages * max(1.0, ratio)
        if kind in HINTED or other in HINTED:
            steps = HINT_STEP * min(steps, pages * MOST_STEPS)
        else:
            steps *= STEP
        # The weight of an ordinary page stays 1.
        if ORDINARY not in (kind, other):
            steps /= 2
        for each, change in ((kind, steps), (other, -steps)):
            if each != ORDINARY:
                moved = self._logs[each] + change
                self._logs[each] = max(log(LEAST[each]), min(moved, log(MOST[each])))

    def _age(self, entry: Entry) -> float:
        """Returns a head's age divided by its queue's weight. The hot set's is always the least."""
        if entry.queue == HOT:
            return -1.0
        weight = self._weights.get(entry.queue)
        if weight is None:
            priority, kind = divmod(entry.queue, KINDS)
            weight = self.weights[kind] * PRIORITY_FACTOR**priority
            self._weights[entry.queue] = weight
        return (self.latest - entry.rank) / weight


# The policies by name, as the setting has them.
POLICIES: dict[str, PolicyFactory] = {
    "auto": Auto,
    "gdsf": GreedyDual,
    "level": DeepestLevel,
    "lfu": LeastFrequentlyUsed,
    "lru": LeastRecentlyUsed,
    "slru": Segmented,
}
