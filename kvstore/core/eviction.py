"""Eviction policies nominate; the cache executes.

A policy never touches the tree or a slot. The cache offers it every leaf that
may become evictable, and carries out the victims it names, in the order named.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple, Protocol

from kvstore.core.leaf import Leaf

# Below this many entries a sweep gains nothing worth its time.
SWEEP_FROM = 64


class Victim(NamedTuple):
    """The last ``pages`` copies of ``leaf``, which is one by the time its turn comes."""

    leaf: Leaf
    pages: int


class EvictionPolicy(Protocol):
    """Chooses which pages of one arena go first."""

    def offer(self, leaf: Leaf) -> None:
        """Take note of a leaf that has become one, or of which a hold has gone."""

    def nominate(self, pages: int) -> list[Victim]:
        """Return victims of exactly ``pages`` pages in total, or none at all.

        No page that is held is a victim, and no page whose continuation stays.
        Changes nothing but the policy's own order.
        """


PolicyFactory = Callable[[], EvictionPolicy]


class LeastRecentlyUsed:
    """Leaf tails, the least recently used leaf first.

    A heap with lazy deletion: a touch changes nothing here, and an entry found
    out of date at the top is put back where it belongs, so that a nomination
    costs O(log leaves) a victim, whatever the number of leaves. Entries of nodes
    that are leaves no more are swept out whenever the heap has doubled.
    """

    def __init__(self) -> None:
        # (last use as entered, a number that no other entry has, leaf)
        self._heap: list[tuple[int, int, Leaf]] = []
        self.entries = count()
        self._sweep_at = SWEEP_FROM

    def offer(self, leaf: Leaf) -> None:
        """Put a leaf in the order, unless it stands there already."""
        if not leaf.queued:
            if len(self._heap) >= self._sweep_at:
                self._sweep()
            leaf.queued = True
            heappush(self._heap, (leaf.last_use, next(self.entries), leaf))

    def nominate(self, pages: int) -> list[Victim]:
        """Return victims of exactly ``pages`` pages in total, or none at all."""
        return _Nomination(self, pages).run()

    def _sweep(self) -> None:
        """Drop the entries of what is a leaf no more; it is offered again if it becomes one."""
        kept = []
        for entry in self._heap:
            if entry[2].is_leaf:
                kept.append(entry)
            else:
                entry[2].queued = False
        heapify(kept)
        self._heap = kept
        self._sweep_at = max(2 * len(kept), SWEEP_FROM)

    def pop(self) -> tuple[int, Leaf] | None:
        """Take the first entry out of the order: its last use as entered, and its leaf."""
        if not self._heap:
            return None
        last_use, _, leaf = heappop(self._heap)
        leaf.queued = False
        return last_use, leaf


class _Nomination:
    """One call of ``nominate``: what it has taken in mind and not in fact."""

    def __init__(self, policy: LeastRecentlyUsed, wanted: int) -> None:
        self._policy = policy
        self._wanted = wanted
        self._victims: list[Victim] = []
        # Of parents: children taken in mind, and the later of all their last uses.
        self._children_taken: dict[Leaf, int] = {}
        self._inherited: dict[Leaf, int] = {}
        self._virtual: list[tuple[int, int, Leaf]] = []

    def run(self) -> list[Victim]:
        missing = self._wanted
        while missing > 0:
            leaf = self._next()
            if leaf is None:
                break
            taken = min(missing, leaf.copy_count - leaf.held_pages)
            if taken:
                missing -= taken
                self._victims.append(Victim(leaf, taken))
                if taken == leaf.copy_count:
                    self._bereave(leaf)
        if missing == 0:
            return self._victims
        for victim in self._victims:
            if victim.leaf.is_leaf:
                self._policy.offer(victim.leaf)
        return []

    def _next(self) -> Leaf | None:
        """Return the least recently used leaf, in fact or in mind."""
        while True:
            entry = self._policy.pop()
            if entry is None:
                return heappop(self._virtual)[2] if self._virtual else None
            last_use, leaf = entry
            if not leaf.is_leaf:
                continue
            if leaf.last_use != last_use:
                self._policy.offer(leaf)
                continue
            if self._virtual and self._virtual[0][0] < last_use:
                self._policy.offer(leaf)
                return heappop(self._virtual)[2]
            return leaf

    def _bereave(self, gone: Leaf) -> None:
        """Note that a leaf goes whole: the nearest copies above may be a leaf by then."""
        parent = gone.parent
        while parent is not None:
            taken = self._children_taken[parent] = self._children_taken.get(parent, 0) + 1
            inherited = max(self._inherited.get(gone, gone.last_use), gone.last_use)
            self._inherited[parent] = max(self._inherited.get(parent, parent.last_use), inherited)
            if taken < parent.child_count:
                return
            if parent.copy_count:
                entry = (self._inherited[parent], next(self._policy.entries), parent)
                heappush(self._virtual, entry)
                return
            gone, parent = parent, parent.parent
