"""The pages of KV cache groups that a match needs before its end, and where it can then end.

A path of group 0 is whole up to its end, while other groups have holes. A match with groups ends
at the deepest page at which each group has its whole window. Nothing here changes state.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from kvstore.core.index.children import NO_CHILDREN
from kvstore.core.index.node import Node, Position
from kvstore.core.index.radix import ancestor
from kvstore.core.leases.lease import Lease
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.placement import FIRST, LOWER
from kvstore.core.values.group_pages import group_marker
from kvstore.core.values.requests import GroupWindow
from kvstore.core.values.slots import INDEX_BITS
from kvstore.errors import InvalidField

# Returns the tier in which a page of a group can be read, or 0 for none.
TierOf: TypeAlias = Callable[[Node], int]


class FoundGroup(NamedTuple):
    """A group's pages from page ``start_page`` on, in prefix order, with the tier of each."""

    group: int
    start_page: int
    pages: list[tuple[Node, int]]


def require_windows(namespace: Namespace, windows: tuple[GroupWindow, ...]) -> None:
    """Raises InvalidField unless each group is named once and can have pages."""
    for window in windows:
        group_marker(window.group, namespace.width)
    if len({window.group for window in windows}) < len(windows):
        raise InvalidField(field="groups", why="a group stands there twice")


def tier_for(lease: Lease | None, namespace: Namespace) -> TierOf:
    """Returns the function that tells in which tier a lease can read a group's page.

    It is the nearest one. Without a lease every copy can be read.
    """
    if lease is None:
        return lambda node: FIRST if node.copy_count else LOWER
    if namespace.lower_arena is None and lease.has_all_of(namespace.arena):
        return lambda _: FIRST
    first = lease.usable_extents(namespace.arena)
    below = namespace.lower_arena
    lower = set() if below is None else lease.usable_extents(below)

    def tier_of(node: Node) -> int:
        if node.slots[0] >> INDEX_BITS in first:
            return FIRST
        there = node.lower is not None and node.lower.slots[0] >> INDEX_BITS in lower
        return LOWER if there else 0

    return tier_of


def fit(
    namespace: Namespace,
    at: Position,
    windows: tuple[GroupWindow, ...],
    start_page: int,
    tier_of: TierOf,
) -> tuple[Position, tuple[FoundGroup, ...]]:
    """Returns the deepest place on the path to ``at`` where every window is whole, and the pages.

    Walks up once: a hole at one page rules out every end whose window would reach it. So a page
    is looked up once for each group. Costs the pages of the windows and of the holes.
    """
    walk = _Walk(namespace, at, windows, start_page, tier_of)
    while not walk.is_whole():
        pass
    return ancestor(at, walk.end), walk.groups()


class _Walk:
    """A walk up a path, for the end that is tried now."""

    def __init__(
        self,
        namespace: Namespace,
        at: Position,
        windows: tuple[GroupWindow, ...],
        start_page: int,
        tier_of: TierOf,
    ) -> None:
        self.end = at.depth
        self._node, self._pages = at
        self._start = start_page
        self._windows = windows
        self._markers = [group_marker(window.group, namespace.width) for window in windows]
        self._tier_of = tier_of
        self._found: list[list[tuple[Node, int]]] = []

    def is_whole(self) -> bool:
        """Returns True if all windows before ``end`` are whole; otherwise moves ``end`` up.

        The walk goes on where it found a hole.
        """
        if not self._ends_whole():
            return False
        firsts = [self._first(window) for window in self._windows]
        self._found = [[] for _ in firsts]
        wanted = list(zip(self._markers, firsts, self._found, strict=True))
        lowest = min(firsts)
        node, depth = self._node, self.end
        while depth > lowest:
            while node.start >= depth:
                assert node.parent is not None  # the root starts at zero
                node = node.parent
            # Pages of groups are children, and those are at the node's end.
            children = node.children if depth == node.start + len(node.slots) else NO_CHILDREN
            for marker, first, pages in wanted:
                if first >= depth:
                    continue
                page = children.get(marker)
                tier = 0 if page is None else self._tier_of(page)
                if page is None or not tier:
                    self._node, self.end = node, self._next_end(node, depth)
                    return False
                pages.append((page, tier))
            depth -= 1
        return True

    def _ends_whole(self) -> bool:
        """Returns True if the last page of each window is there; otherwise moves ``end`` up.

        Stops at the first that lacks, so a step costs as many looks as there are pages.
        """
        node, depth = self._node, self.end
        if depth <= self._start:
            return True
        while node.start >= depth:
            assert node.parent is not None  # the root starts at zero
            node = node.parent
        children = node.children if depth == node.start + len(node.slots) else NO_CHILDREN
        for marker in self._markers:
            page = children.get(marker)
            if page is None or not self._tier_of(page):
                self._node, self.end = node, self._next_end(node, depth)
                return False
        return True

    def groups(self) -> tuple[FoundGroup, ...]:
        """Returns the pages of all windows before ``end``."""
        rows = zip(self._windows, self._found, strict=True)
        return tuple(
            FoundGroup(window.group, self._first(window), pages[::-1]) for window, pages in rows
        )

    def _first(self, window: GroupWindow) -> int:
        """Returns the first page that a window needs; ``end`` if it needs none."""
        count = window.page_count or self.end
        return min(max(self.end - count, self._start), self.end)

    def _next_end(self, node: Node, depth: int) -> int:
        """Returns the deepest end that may do, above a hole of the page that ends at ``depth``.

        No page of a group ends within a node, so no such end does, except where nothing is needed.
        """
        above = min(depth - 1, max(node.start, self._start))
        return above if depth < node.start + len(node.slots) else depth - 1
