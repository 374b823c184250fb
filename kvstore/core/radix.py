"""The index: a compressed radix tree over token bytes, in whole pages.

The walk keeps the prompt as one ``bytes`` and moves a cursor over it: an edge is
compared by ``startswith``, which is a memcmp without a slice (100,000 tokens in
196 nodes: 89 us in pure Python, where slicing the rest of the key at each node
takes 6,860 us; two slow cores, medians). A match changes no structure.
"""

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvstore.core.node import Node, Position
from kvstore.core.slots import Slots
from kvstore.core.tokens import TOKEN_BYTES, common_pages

if TYPE_CHECKING:
    from kvstore.core.namespace import Namespace


class RadixIndex:
    """The tree of one namespace. Not thread-safe; knows no leases and no slots' states."""

    def __init__(self, namespace: "Namespace", page_tokens: int) -> None:
        self.width = page_tokens * TOKEN_BYTES
        self.root = Node(namespace, 0, b"", array("Q"), None, 0)
        self.nodes: dict[int, Node] = {}
        self.page_count = 0
        self._last_number = 0

    def descend(self, at: Position, tokens: bytes, pages: int) -> Position:
        """Return how far the first ``pages`` pages of ``tokens`` are cached below ``at``.

        Changes nothing. Cost: pages of the prompt, as memcmp, and a step a node.
        """
        node, depth = at
        width = self.width
        cursor, end = 0, pages * width
        if depth < len(node.slots):
            common = common_pages(node.edge, depth * width, tokens, 0, end, width)
            depth += common
            cursor = common * width
            if depth < len(node.slots):
                return Position(node, depth)
        while cursor < end:
            child = node.children.get(tokens[cursor : cursor + width])
            if child is None:
                break
            node = child
            stop = cursor + len(node.edge)
            if stop <= end and tokens.startswith(node.edge, cursor):
                cursor, depth = stop, len(node.slots)
                continue
            depth = common_pages(node.edge, 0, tokens, cursor, end, width)
            break
        return Position(node, depth)

    def extend(self, at: Position, tokens: bytes, slots: Slots) -> Position:
        """Add ``slots``'s pages, of ``tokens``, after ``at`` and return their end.

        The first of them MUST NOT be cached below ``at`` yet. Splits the node
        that ``at`` is inside of; a leaf grows in place.
        """
        node, depth = at
        if depth < len(node.slots):
            node = self.split(node, depth)
        self.page_count += len(slots)
        if node.parent is not None and not node.children:
            node.edge += tokens
            node.slots.extend(slots)
            return Position(node, len(node.slots))
        child = self._new_node(tokens, slots, node, node.start + len(node.slots))
        return Position(child, len(slots))

    def split(self, node: Node, pages: int) -> Node:
        """Cut ``node`` after ``pages`` pages and return the new upper part.

        The existing node becomes the lower part, so that holds below the cut
        stay where they are; those at or above it move up.
        """
        cut = pages * self.width
        parent = node.parent
        assert parent is not None  # the root has no pages to cut between
        upper = self._new_node(node.edge[:cut], node.slots[:pages], parent, node.start)
        upper.last_use = node.last_use
        upper.hits = node.hits
        node.edge = node.edge[cut:]
        node.slots = node.slots[pages:]
        node.start += pages
        node.parent = upper
        upper.children[node.edge[: self.width]] = node
        for anchor in list(node.anchors):
            if anchor.pages <= pages:
                anchor.move(upper, anchor.pages)
            else:
                anchor.move(node, anchor.pages - pages)
        return upper

    def cut_tail(self, node: Node, pages: int) -> Slots:
        """Remove the last ``pages`` pages of a leaf and return their slots.

        A leaf without pages left leaves the tree.
        """
        slots = trim(node, len(node.slots) - pages, self.width)
        self.page_count -= pages
        if not node.slots:
            self._forget(node)
        return slots

    def detach(self, node: Node) -> list[Node]:
        """Take ``node`` and all below it out of the tree; parents come before children.

        The nodes keep their links among each other; the first has no parent.
        """
        parent = node.parent
        assert parent is not None  # the root stays
        del parent.children[node.edge[: self.width]]
        node.parent = None
        taken = list(subtree(node))
        for each in taken:
            each.detached = True
            self.page_count -= len(each.slots)
            self._forget(each)
        return taken

    def _new_node(self, edge: bytes, slots: Slots, parent: Node, start: int) -> Node:
        self._last_number += 1
        node = Node(self.root.namespace, self._last_number, edge, slots, parent, start)
        parent.children[edge[: self.width]] = node
        self.nodes[node.number] = node
        return node

    def _forget(self, node: Node) -> None:
        del self.nodes[node.number]


def subtree(top: Node) -> Iterator[Node]:
    """Yield ``top`` and all below it, parents before children."""
    stack = [top]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())


def trim(leaf: Node, keep: int, width: int) -> Slots:
    """Cut a leaf down to its first ``keep`` pages and return the slots cut off.

    A leaf without pages left is unhooked from its parent.
    """
    removed = leaf.slots[keep:]
    if keep == 0 and leaf.parent is not None:
        del leaf.parent.children[leaf.edge[:width]]
    leaf.edge = leaf.edge[: keep * width]
    del leaf.slots[keep:]
    return removed


def ancestor(at: Position, depth: int) -> Position:
    """Return the place on ``at``'s path that is ``depth`` pages from the beginning.

    ``depth`` MUST NOT be beyond ``at``, nor above the top of its tree.
    """
    node = at.node
    while node.parent is not None and node.start >= depth:
        node = node.parent
    return Position(node, depth - node.start)


def path_slots(at: Position) -> Slots:
    """Return the slots from the top of ``at``'s tree through ``at``, in prefix order."""
    path = []
    node: Node | None = at.node.parent
    while node is not None:
        path.append(node.slots)
        node = node.parent
    slots = array("Q")
    for part in reversed(path):
        slots.extend(part)
    slots.extend(at.node.slots[: at.pages])
    return slots


def path_tokens(at: Position, width: int) -> bytes:
    """Return the token bytes from the top of ``at``'s tree through ``at``."""
    path = [at.node.edge[: at.pages * width]]
    node = at.node.parent
    while node is not None:
        path.append(node.edge)
        node = node.parent
    return b"".join(reversed(path))
