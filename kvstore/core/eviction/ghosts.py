"""Recently evicted pages, remembered in case somebody asks for them again."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kvstore.core.index.node import Node

# A named tuple's constructor costs a Python frame: with it an eviction takes 8 % longer.
_new_tuple = tuple.__new__

# The most runs that are remembered, whatever their pages: about 20 MB.
MAX_RUNS = 65_536
# The pages that are remembered, as a multiple of the arena's slots.
ARENAS = 2


class Ghost(NamedTuple):
    """A run of ``pages`` evicted pages, which the policy had put in one queue, its ``kind``.

    ``digest`` identifies its tokens, and ``number`` counts the pages that left before it.
    """

    pages: int
    kind: int
    digest: int
    number: int


class Return(NamedTuple):
    """Evicted pages of a node, from ``start`` on, and the number of pages that left since."""

    start: int
    pages: int
    kind: int
    left_since: int


class GhostList:
    """Evicted runs by depth and first page. The oldest are dropped beyond a bound.

    Tokens are compared by a hash, so runs of two prefixes may rarely be confused. That only
    affects the order of evictions. To note or to find a run costs a hash of its tokens.
    """

    def __init__(self) -> None:
        self._runs: OrderedDict[int, Ghost] = OrderedDict()
        self._left = 0
        self._pages = 0
        # The remembered pages of each kind.
        self.by_kind: dict[int, int] = {}

    def note(self, node: "Node", start: int, end: int, kind: int, slot_count: int) -> None:
        """Remembers that a node's pages from ``start`` to ``end`` leave."""
        runs, pages, width = self._runs, end - start, node.tree.width
        key = _key(node, start, width)
        if key in runs:
            self._forget(runs.pop(key))
        digest = hash(node.edge[start * width : end * width])
        runs[key] = _new_tuple(Ghost, (pages, kind, digest, self._left))
        self._left += pages
        by_kind = self.by_kind
        by_kind[kind] = by_kind.get(kind, 0) + pages
        remembered, most = self._pages + pages, ARENAS * slot_count
        while remembered > most or len(runs) > MAX_RUNS:
            pages, kind, _, _ = runs.popitem(last=False)[1]
            remembered -= pages
            by_kind[kind] -= pages
        self._pages = remembered

    def find(self, node: "Node", start: int) -> Iterator[Return]:
        """Yields the evicted runs among a node's pages from ``start`` on, and forgets them.

        A run that is only partly there, or that continues with other tokens, counts as one page.
        """
        width, count = node.tree.width, len(node.slots)
        while start < count and self._runs:
            ghost = self._runs.pop(_key(node, start, width), None)
            if ghost is None:
                return
            self._forget(ghost)
            end = start + ghost.pages
            whole = end <= count and hash(node.edge[start * width : end * width]) == ghost.digest
            pages = ghost.pages if whole else 1
            yield Return(start, pages, ghost.kind, self._left - ghost.number)
            start += pages

    def _forget(self, ghost: Ghost) -> None:
        self._pages -= ghost.pages
        self.by_kind[ghost.kind] -= ghost.pages


def _key(node: "Node", start: int, width: int) -> int:
    page = node.edge[start * width : (start + 1) * width]
    return hash((node.tree.number, node.start + start, page))
