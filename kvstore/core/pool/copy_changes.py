"""The copies of nodes' pages: their changes, and the list of all of them.

Only whole pages of a path count. They have ids if a journal or a :class:`ChangeLog` gave them some.
"""

from collections.abc import Iterable

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
        if node.parent is not None:
            node, end = node.parent, len(node.parent.slots)
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


class CopySweep:
    """Lists all copies in some namespaces, a part at a time, parents before children.

    Calls may be made between two parts. Together with all changes since the sweep began, in their
    order, the parts have every copy that there is at the end. They may have a copy twice, and one
    that was removed meanwhile, whose removal follows.
    """

    def __init__(self, namespaces: Iterable[Namespace]) -> None:
        # Siblings that were not looked at, with the number of pages above them.
        self._waiting: list[tuple[list[Node], int]] = [
            ([each.index.root], 0) for each in namespaces
        ]
        # Numbers of the nodes that were listed, by namespace.
        self._listed: set[tuple[int, int]] = set()

    @property
    def is_done(self) -> bool:
        """True if all copies were listed."""
        return not self._waiting

    def take(self, most: int) -> list[CopiesStored]:
        """Returns the copies in the next ``most`` nodes at most, as if they were made now."""
        parts: list[CopiesStored] = []
        while self._waiting and most > 0:
            most -= 1
            siblings, start = self._waiting[-1]
            found = _present(siblings.pop(), start)
            if not siblings:
                self._waiting.pop()
            if found is None:
                continue
            namespace = namespace_of(found)
            if (namespace.number, found.number) in self._listed:
                continue
            self._listed.add((namespace.number, found.number))
            parts += _copies_of(found, namespace)
            children = list(found.children.values())
            if children:
                self._waiting.append((children, found.start + len(found.slots)))
        return parts


def _present(node: Node, start: int) -> Node | None:
    """Returns the node that has the page at ``start`` of a node's path now, or None.

    The node may have been merged with the one below it, split, evicted or detached since.
    """
    while not node.slots and node.parent is not None:
        node = node.parent
    if node.detached:
        return None
    while node.start > start and node.parent is not None:
        node = node.parent
    return node


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
