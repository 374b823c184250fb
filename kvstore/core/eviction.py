"""Eviction policies nominate; the cache executes.

A policy never touches the tree or a slot. The cache offers it every leaf that
may become evictable, and carries out the victims it names, in the order named.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple, Protocol

from kvstore.core.node import Node

# Below this many entries a sweep gains nothing worth its time.
SWEEP_FROM = 64


def is_leaf(node: Node) -> bool:
    """Return whether ``node`` is in the index, has pages and nothing continues it."""
    return bool(node.slots) and not node.detached and not node.children


class Victim(NamedTuple):
    """The last ``pages`` pages of ``node``, a leaf by the time its turn comes."""

    node: Node
    pages: int


class EvictionPolicy(Protocol):
    """Chooses which pages of one arena go first."""

    def offer(self, leaf: Node) -> None:
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
        self._heap: list[tuple[int, int, Node]] = []
        self.entries = count()
        self._sweep_at = SWEEP_FROM

    def offer(self, leaf: Node) -> None:
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
            if is_leaf(entry[2]):
                kept.append(entry)
            else:
                entry[2].queued = False
        heapify(kept)
        self._heap = kept
        self._sweep_at = max(2 * len(kept), SWEEP_FROM)

    def pop(self) -> tuple[int, Node] | None:
        """Take the first entry out of the order: its last use as entered, and its node."""
        if not self._heap:
            return None
        last_use, _, node = heappop(self._heap)
        node.queued = False
        return last_use, node


class _Nomination:
    """One call of ``nominate``: what it has taken in mind and not in fact."""

    def __init__(self, policy: LeastRecentlyUsed, wanted: int) -> None:
        self._policy = policy
        self._wanted = wanted
        self._victims: list[Victim] = []
        # Of parents: children taken in mind, and the later of all their last uses.
        self._children_taken: dict[Node, int] = {}
        self._inherited: dict[Node, int] = {}
        self._virtual: list[tuple[int, int, Node]] = []

    def run(self) -> list[Victim]:
        missing = self._wanted
        while missing > 0:
            node = self._next()
            if node is None:
                break
            taken = min(missing, len(node.slots) - node.held_pages)
            if taken:
                missing -= taken
                self._victims.append(Victim(node, taken))
                if taken == len(node.slots):
                    self._bereave(node)
        if missing == 0:
            return self._victims
        for victim in self._victims:
            if not victim.node.children:
                self._policy.offer(victim.node)
        return []

    def _next(self) -> Node | None:
        """Return the least recently used node that is a leaf in fact or in mind."""
        while True:
            entry = self._policy.pop()
            if entry is None:
                return heappop(self._virtual)[2] if self._virtual else None
            last_use, node = entry
            if not is_leaf(node):
                continue
            if node.last_use != last_use:
                self._policy.offer(node)
                continue
            if self._virtual and self._virtual[0][0] < last_use:
                self._policy.offer(node)
                return heappop(self._virtual)[2]
            return node

    def _bereave(self, node: Node) -> None:
        """Note that a node goes whole: its parent may be a leaf by then."""
        parent = node.parent
        assert parent is not None  # the root has no pages and is no victim
        taken = self._children_taken[parent] = self._children_taken.get(parent, 0) + 1
        inherited = max(self._inherited.get(node, node.last_use), node.last_use)
        self._inherited[parent] = max(self._inherited.get(parent, parent.last_use), inherited)
        if taken == len(parent.children) and parent.parent is not None:
            entry = (self._inherited[parent], next(self._policy.entries), parent)
            heappush(self._virtual, entry)
