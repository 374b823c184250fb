"""One call of ``nominate``: what it has taken in mind and not in fact."""

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from kvstore.core.eviction.policy import Victim
from kvstore.core.index.usage import Tail, tail_of
from kvstore.core.leaf import Leaf

if TYPE_CHECKING:
    from kvstore.core.eviction.order import LeafOrder
    from kvstore.core.eviction.queue import Entry

_new_tuple = tuple.__new__


class InMind:
    """A leaf of which something was taken: its pages ``left``, and what it inherits."""

    __slots__ = ("children_taken", "hits", "last_use", "left")

    def __init__(self, left: int) -> None:
        self.left = left
        self.children_taken = 0
        self.last_use = 0
        self.hits = 0

    def tail(self, leaf: Leaf) -> Tail:
        """Return the tail of what is left."""
        tail = tail_of(leaf.node, self.left)
        if not self.children_taken:
            return tail
        last_use = max(tail.last_use, self.last_use)
        return tail._replace(last_use=last_use, hits=tail.hits + self.hits)


class Nomination:
    """Takes leaves in the policy's order, and their parents when all below is taken."""

    def __init__(self, order: "LeafOrder", wanted: int) -> None:
        self._order = order
        self._missing = wanted
        self._minds: dict[Leaf, InMind] = {}
        # Pages taken, by leaf, in the order in which the leaves' turns came.
        self._taken: dict[Leaf, int] = {}
        # Entries of leaves in mind, by queue.
        self._virtual: dict[int, list[Entry]] = {}

    def run(self, first: Leaf) -> list[Victim]:
        """Return exactly the victims wanted, ``first`` of all, or none, the order as it was."""
        leaf: Leaf | None = first
        while leaf is not None:
            self._take(leaf)
            leaf = self._next() if self._missing > 0 else None
        if self._missing <= 0:
            return [_new_tuple(Victim, each) for each in self._taken.items()]
        for leaf in self._taken:
            if leaf.is_leaf:
                self._order.offer(leaf)
        return []

    def _take(self, leaf: Leaf) -> None:
        mind = self._minds.get(leaf)
        tail = leaf.tail() if mind is None else mind.tail(leaf)
        pages = min(self._missing, self._order.at_once(leaf, tail))
        if pages <= 0:
            return
        self._missing -= pages
        self._taken[leaf] = self._taken.get(leaf, 0) + pages
        if not self._missing:
            return
        left = tail.end - pages
        if not left:
            self._bereave(leaf, tail)
            return
        if mind is None:
            mind = self._minds[leaf] = InMind(left)
        mind.left = left
        self._enter(leaf, mind)

    def _next(self) -> Leaf | None:
        """Return the leaf, in fact or in mind, whose turn it is."""
        order = self._order
        heads = order.heads()
        for queue, entries in self._virtual.items():
            if entries and (queue not in heads or entries[0] < heads[queue]):
                heads[queue] = entries[0]
        if not heads:
            return None
        first = order.choose(list(heads.values())) if len(heads) > 1 else heads.popitem()[1]
        if first.leaf.queued is first:
            order.take(first)
        else:
            heappop(self._virtual[first.queue])
        return first.leaf

    def _enter(self, leaf: Leaf, mind: InMind) -> None:
        entry = self._order.entry_of(leaf, mind.tail(leaf))
        heappush(self._virtual.setdefault(entry.queue, []), entry)

    def _bereave(self, gone: Leaf, tail: Tail) -> None:
        """Note that a leaf goes whole: the nearest copies above may be a leaf by then."""
        parent, last_use, hits = gone.parent, tail.last_use, tail.hits
        while parent is not None:
            mind = self._minds.get(parent)
            if mind is None:
                mind = self._minds[parent] = InMind(parent.copy_count)
            mind.children_taken += 1
            mind.last_use = max(mind.last_use, last_use)
            mind.hits += hits
            if mind.children_taken < parent.child_count:
                return
            if parent.copy_count:
                self._enter(parent, mind)
                return
            last_use, hits = max(mind.last_use, parent.last_use), mind.hits + parent.hits
            parent = parent.parent
