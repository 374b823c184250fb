"""Every eviction policy page by page, by looking at all pages each time.

Pages are a trace's blocks; a page that another cached one continues is no candidate.
The hot set is left out.
"""

from collections import OrderedDict
from math import exp, log

from kvstore.core.eviction import policies
from support.replay.trace import Request

# What the naive ones cannot know of the real ones' order: which of nothing is less.
Rank = tuple[float, ...]


class NaiveCache:
    """A forest of pages by id; each has its last use, its hits and its depth."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.uses = 0
        self.last_use: dict[int, int] = {}
        self.hits: dict[int, int] = {}
        self.depth: dict[int, int] = {}
        self.parent: dict[int, int | None] = {}
        self.children: dict[int, int] = {}

    def replay(self, requests: list[Request]) -> int:
        """Returns the tokens that hit."""
        return sum(each.tokens_of(self.ask(each.ids)) for each in requests)

    def ask(self, ids: tuple[int, ...]) -> int:
        """Matches a prompt and insert the rest, making room first; returns the pages that hit."""
        matched = next((k for k, each in enumerate(ids) if each not in self.last_use), len(ids))
        self.uses += 1
        for each in ids[:matched]:
            self.last_use[each] = self.uses
            self.hits[each] += 1
            self.touched(each)
        missing = len(self.last_use) + len(ids) - matched - self.capacity
        for _ in range(missing):
            self.evict(frozenset(ids))
        if matched < len(ids):
            self.uses += 1
        for depth, each in enumerate(ids):
            self.last_use[each] = self.uses
            if depth >= matched:
                self.publish(each, ids[depth - 1] if depth else None, depth)
        return matched

    def publish(self, page: int, parent: int | None, depth: int) -> None:
        """Takes in a page that is not there."""
        self.hits[page] = 0
        self.depth[page] = depth
        self.parent[page] = parent
        self.children[page] = 0
        if parent is not None:
            self.children[parent] += 1
        self.touched(page)

    def evict(self, kept: frozenset[int]) -> int:
        """Drops the page of the lowest rank that nothing continues and that is not kept."""
        leaves = [page for page, n in self.children.items() if not n and page not in kept]
        victim = self.choose(leaves)
        parent = self.parent.pop(victim)
        if parent is not None:
            self.children[parent] -= 1
        for table in (self.last_use, self.hits, self.depth, self.children):
            del table[victim]
        return victim

    def choose(self, leaves: list[int]) -> int:
        """Returns which leaf goes."""
        return min(leaves, key=self.rank)

    def rank(self, page: int) -> Rank:
        """Returns a leaf's rank: the least recently used goes."""
        return (self.last_use[page],)

    def touched(self, page: int) -> None:
        """Takes note that a page was used."""


class NaiveFrequency(NaiveCache):
    """The least often hit."""

    def rank(self, page: int) -> Rank:
        """Returns hits, then last use."""
        return (self.hits[page], self.last_use[page])


class NaiveLevel(NaiveCache):
    """The deepest."""

    def rank(self, page: int) -> Rank:
        """Returns the depth, then last use."""
        return (-self.depth[page], self.last_use[page])


class NaiveSegmented(NaiveCache):
    """Never hit first, unless those that were are too large a part."""

    def choose(self, leaves: list[int]) -> int:
        """Returns the oldest of one segment."""
        protected = [page for page in leaves if self.hits[page]]
        probation = [page for page in leaves if not self.hits[page]]
        too_many = len(protected) > policies.PROTECTED_SHARE * len(leaves)
        return min(probation if probation and not too_many else protected, key=self.rank)


class NaiveGreedyDual(NaiveCache):
    """The least valuable above a level that rises."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.level = 0.0
        self.base: dict[int, float] = {}

    def touched(self, page: int) -> None:
        """Keeps the level as it was then."""
        self.base[page] = self.level

    def rank(self, page: int) -> Rank:
        """Returns the value above the level at the last use."""
        cost = 1 + (self.depth[page] + 1) / policies.ATTENTION_TOKENS
        return (self.base[page] + (1 + self.hits[page]) * cost,)

    def choose(self, leaves: list[int]) -> int:
        """Returns the least valuable, and rise to it."""
        victim = super().choose(leaves)
        self.level = max(self.level, self.rank(victim)[0])
        return victim


class NaiveAuto(NaiveCache):
    """The oldest, where the age of what was seen before counts less by a weight that moves."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.log = log(policies.FIRST[policies.SEEN])
        self.ghosts: OrderedDict[int, bool] = OrderedDict()
        self.returned: set[int] = set()

    def is_seen(self, page: int) -> bool:
        """Returns whether a page was hit, or came back."""
        return self.hits[page] > 0 or page in self.returned

    def choose(self, leaves: list[int]) -> int:
        """Returns the leaf of the greatest weighted age, and remember it."""

        def age(page: int) -> float:
            return (self.uses - self.last_use[page]) / (
                exp(self.log) if self.is_seen(page) else 1.0
            )

        victim = max(leaves, key=age)
        self.ghosts[victim] = self.is_seen(victim)
        self.returned.discard(victim)
        while len(self.ghosts) > 2 * self.capacity:
            self.ghosts.popitem(last=False)
        return victim

    def publish(self, page: int, parent: int | None, depth: int) -> None:
        """Learns from a page that comes back."""
        super().publish(page, parent, depth)
        seen = self.ghosts.pop(page, None)
        if seen is not None:
            self.returned.add(page)
            many = sum(self.ghosts.values())
            few = len(self.ghosts) - many
            own, other = (many, few) if seen else (few, many)
            step = max(1.0, other / max(own, 1)) if other else 0.0
            moved = self.log + policies.STEP * (step if seen else -step)
            self.log = min(max(moved, 0.0), log(policies.MOST[policies.SEEN]))


NAIVE: dict[str, type[NaiveCache]] = {
    "auto": NaiveAuto,
    "gdsf": NaiveGreedyDual,
    "level": NaiveLevel,
    "lfu": NaiveFrequency,
    "lru": NaiveCache,
    "slru": NaiveSegmented,
}
