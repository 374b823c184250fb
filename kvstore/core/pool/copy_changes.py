"""The copies of nodes' pages: their changes, and the list of all of them.

Only whole pages of a path count. They have ids if a journal or a :class:`ChangeLog` gave them some.
"""

from collections.abc import Iterable
from typing import NamedTuple

from kvstore.core.index.node import Node
from kvstore.core.pool.namespace import Namespace, namespace_of
from kvstore.core.pool.placement import FIRST, LOWER
from kvstore.core.values.change_log import NO_PARENT, ChangeLog, CopiesRemoved, CopiesStored
from kvstore.core.values.group_pages import is_group_page


def has_whole_pages(tokens: bytes, width: int) -> bool:
    """Returns True if pages with these tokens count. A whole page has ``width`` bytes.

    A node, and what is published at once, has either whole pages, a partial page or a page of a
    KV cache group.
    """
    return len(tokens) >= width and not is_group_page(tokens)


def note_copies_removed(log: ChangeLog, node: Node, first: int, last: int, tier: int) -> None:
    """Records that a node's pages from ``first`` until ``last`` lose their copies in a tier."""
    namespace = namespace_of(node)
    if first < last and node.page_ids is not None and has_whole_pages(node.edge, namespace.width):
        ids = node.page_ids.between(first, last)
        log.note(CopiesRemoved(namespace, tier, ids))


def note_node_removed(log: ChangeLog, node: Node) -> None:
    """Records that a node loses all its copies."""
    note_copies_removed(log, node, 0, node.copy_count, FIRST)
    note_copies_removed(log, node, 0, node.lower_count, LOWER)


def note_copied(log: ChangeLog, node: Node, end: int, pages: int, tier: int) -> None:
    """Records that the last ``pages`` pages through a node's ``end`` got copies in a tier.

    They may begin in a node above.
    """
    namespace, width = namespace_of(node), node.tree.width
    parts: list[CopiesStored] = []
    while pages > 0:
        first = max(end - pages, 0)
        if node.page_ids is not None and has_whole_pages(node.edge, width):
            ids, tokens = node.page_ids.between(first, end), node.edge[first * width : end * width]
            parts.append(CopiesStored(namespace, tier, _id_before(node, first), ids, tokens))
        pages -= end - first
        if pages > 0:
            above = node.parent
            assert above is not None  # there are as many pages
            node, end = above, len(above.slots)
    for each in reversed(parts):
        log.note(each)


def _id_before(node: Node, page: int) -> int:
    """Returns the id of the page before a node's ``page``, or ``NO_PARENT`` at the beginning."""
    if not page:
        above = node.parent
        if above is None or not above.slots:
            return NO_PARENT
        node, page = above, len(above.slots)
    return NO_PARENT if node.page_ids is None else node.page_ids.at(page - 1)


class _Waiting(NamedTuple):
    """Children of a listed node that were not looked at: the first pages of each.

    The node ended after ``end`` pages from the sequence's beginning when it was listed.
    """

    above: Node
    first_pages: list[bytes]
    end: int


class CopySweep:
    """Lists all copies in some namespaces, a part at a time, parents before children.

    Calls may be made between two parts. Together with all changes since the sweep began, in their
    order, the parts have every copy that there is at the end. They may have a copy twice, and one
    that was removed meanwhile, whose removal follows.
    """

    def __init__(self, namespaces: Iterable[Namespace]) -> None:
        self._roots = [each.index.root for each in namespaces]
        # Numbers of the nodes that this walk was at, and of those that were listed before it.
        self._walked: set[tuple[int, int]] = set()
        self._listed: set[tuple[int, int]] = set()
        self._waiting: list[_Waiting] = []
        self._is_unsure = False
        self._begin_walk()

    @property
    def is_done(self) -> bool:
        """True if all copies were listed."""
        return not self._waiting

    def take(self, most: int) -> list[CopiesStored]:
        """Returns the copies in the next ``most`` nodes at most, as if they were made now."""
        parts: list[CopiesStored] = []
        while self._waiting and most > 0:
            most -= 1
            waiting = self._waiting[-1]
            page = waiting.first_pages.pop()
            if not waiting.first_pages:
                self._waiting.pop()
            found = self._find(waiting, page)
            if found is not None:
                parts += self._list(found)
            if self._is_unsure and not self._waiting:
                self._begin_walk()
        return parts

    def _begin_walk(self) -> None:
        """Begins at the roots, without listing again what was listed."""
        self._listed |= self._walked
        self._walked = set()
        self._is_unsure = False
        for root in self._roots:
            self._wait_below(root)

    def _find(self, waiting: _Waiting, page: bytes) -> Node | None:
        """Returns the node that has a child's first page now, or None if it was removed."""
        above = waiting.above
        if above.detached:
            return None
        if above.slots or above.parent is None:
            return above.children.get(page)
        # It was merged with the node below it, or evicted.
        node = above
        while not node.slots and node.parent is not None:
            node = node.parent
        if node.detached:
            # It may have been the lower part of what is still there.
            self._is_unsure = True
            return None
        while node.start > waiting.end and node.parent is not None:
            node = node.parent
        return node if node.slots else None

    def _list(self, node: Node) -> list[CopiesStored]:
        """Returns the copies of a node, and goes on below it, unless this walk was there."""
        namespace = namespace_of(node)
        place = namespace.number, node.number
        if place in self._walked:
            return []
        self._walked.add(place)
        self._wait_below(node)
        return [] if place in self._listed else _copies_of(node, namespace)

    def _wait_below(self, node: Node) -> None:
        if node.children:
            end = node.start + len(node.slots)
            self._waiting.append(_Waiting(node, list(node.children), end))


def _copies_of(node: Node, namespace: Namespace) -> list[CopiesStored]:
    ids = node.page_ids
    if ids is None or not has_whole_pages(node.edge, namespace.width):
        return []
    parent_id = _id_before(node, 0)
    return [
        CopiesStored(namespace, tier, parent_id, ids.between(0, count), node.edge)
        for tier, count in ((FIRST, node.copy_count), (LOWER, node.lower_count))
        if count
    ]
