"""The index: a compressed radix tree over token bytes, page by page.

The walk keeps the prompt as one ``bytes`` and moves a cursor over it: an edge is
compared by ``startswith``, which is a memcmp without a slice (100,000 tokens in
196 nodes: 89 us in pure Python, where slicing the rest of the key at each node
takes 6,860 us; two slow cores, medians). A match changes no structure.
"""

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvstore.core.children import NO_CHILDREN
from kvstore.core.node import Node, Position
from kvstore.core.steps import cut_uses, divide_uses, join_uses
from kvstore.core.values.slots import Slots
from kvstore.core.values.tokens import TOKEN_BYTES, common_pages, common_tokens

if TYPE_CHECKING:
    from kvstore.core.namespace import Namespace

_new_tuple = tuple.__new__


class RadixIndex:
    """The tree of one namespace. Not thread-safe; knows no leases and no slots' states."""

    # A node may have many pages, and one is made of two where nothing tells them apart.
    joins_nodes = True

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
        return _new_tuple(Position, (node, depth))

    def nearest(self, at: Position, tokens: bytes) -> tuple[Position, int] | None:
        """Return the page after ``at`` that agrees longest with ``tokens``, and for how many.

        The page is given by its end; ``tokens`` are at most a page's. None where
        not one token agrees. Cost: a bisection of what continues ``at``.
        """
        node, depth = at
        if depth < len(node.slots):
            start = depth * self.width
            count = common_tokens(node.edge[start : start + self.width], tokens)
            return (Position(node, depth + 1), count) if count else None
        found = node.children.nearest(tokens)
        return None if found is None else (Position(found[0], 1), found[1])

    def beginning_with(self, at: Position, tokens: bytes) -> Position | None:
        """Return the end of the page after ``at`` that begins with ``tokens``, or None."""
        found = self.nearest(at, tokens)
        if found is None or found[1] * TOKEN_BYTES < len(tokens):
            return None
        return found[0]

    def extend(self, at: Position, tokens: bytes, slots: Slots) -> Position:
        """Add ``slots``'s pages, of ``tokens``, after ``at`` and return their end.

        Whole pages, or one partial page. The first of them MUST NOT be cached
        below ``at`` yet, nor begin with a page there, nor one there with it.
        Splits the node that ``at`` is inside of; a leaf grows in place.
        """
        node, depth = at
        if depth < len(node.slots):
            node = self.split(node, depth)
        self.page_count += len(slots)
        grows = node.parent is not None and not (node.children or node.missing)
        if grows and len(tokens) >= self.width:
            node.edge += tokens
            node.add_pages(slots)
            return Position(node, len(node.slots))
        was_bare = node.is_bare
        child = self._new_node(tokens, slots, node, node.start + len(node.slots))
        if was_bare:
            node.cover()
        return _new_tuple(Position, (child, len(slots)))

    def tops_beginning_with(self, at: Position, tokens: bytes) -> list[Node]:
        """Return the nodes that start with a page after ``at`` which begins with ``tokens``.

        ``tokens`` are at most a page's. Splits the node that ``at`` is inside of.
        """
        node, pages = at
        if pages == len(node.slots):
            return node.children.begun_by(tokens)
        if self.beginning_with(at, tokens) is None:
            return []
        self.split(node, pages)
        return [node]

    def split(self, node: Node, pages: int) -> Node:
        """Cut ``node`` after ``pages`` pages and return the new upper part.

        The existing node becomes the lower part, so that holds below the cut
        stay where they are; those at or above it move up.
        """
        cut = pages * self.width
        parent = node.parent
        assert parent is not None  # the root has no pages to cut between
        upper = self._new_node(node.edge[:cut], array("Q"), parent, node.start)
        divide_uses(upper, node, pages)
        node.edge = node.edge[cut:]
        node.start += pages
        node.parent = upper
        upper.add_child(node.edge[: self.width], node)
        if node.ends is not None:
            upper.ends = node.ends.divide(node.start)
        node.give_upper(upper, pages)
        node.namespace.offer_leaves(upper)
        return upper

    def merge(self, node: Node) -> Node:
        """Join ``node`` with its only child and return that child, which has all pages now.

        Nobody may hold either, and the child MUST NOT be a partial page, nor ``node``
        the root. Whoever still knows ``node`` finds it without pages, after the end of
        its former child, and below it. Costs a copy of both nodes' tokens and slots.
        """
        [child] = node.children.values()
        parent = node.parent
        assert parent is not None  # the root stays
        join_uses(node, len(node.slots), child)
        child.edge = node.edge + child.edge
        child.take_upper(node)
        child.start = node.start
        child.parent = parent
        if node.ends is not None:
            child.ends = node.ends.join(child.ends)
        parent.add_child(child.edge[: self.width], child)
        self._forget(node)
        node.edge, node.ends, node.steps = b"", None, None
        node.children = NO_CHILDREN
        node.parent, node.start = child, child.start + len(child.slots)
        node.namespace.offer_leaves(child)
        return child

    def cut_tail(self, node: Node, pages: int) -> Slots:
        """Remove the last ``pages`` pages of a leaf and return their slots.

        A leaf without pages left leaves the tree.
        """
        keep = len(node.slots) - pages
        slots = trim(node, keep, self.width)
        self.page_count -= pages
        if not keep:
            self._forget(node)
        return slots

    def detach(self, node: Node) -> list[Node]:
        """Take ``node`` and all below it out of the tree; parents come before children.

        The nodes keep their links among each other; the first has no parent.
        """
        _unhook(node, self.width)
        node.parent = None
        taken = list(subtree(node))
        for each in taken:
            each.detached = True
            each.ends = None
            self.page_count -= len(each.slots)
            self._forget(each)
        return taken

    def _new_node(self, edge: bytes, slots: Slots, parent: Node, start: int) -> Node:
        self._last_number += 1
        node = Node(self.root.namespace, self._last_number, edge, slots, parent, start)
        parent.add_child(edge[: self.width], node)
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
    cut_uses(leaf, keep)
    if leaf.ends is not None:
        leaf.ends.cut(leaf.start + keep, leaf.start + len(leaf.slots))
    if keep == 0 and leaf.parent is not None:
        _unhook(leaf, width)
    leaf.edge = leaf.edge[: keep * width]
    return leaf.cut_pages(keep)


def _unhook(node: Node, width: int) -> None:
    """Take ``node`` from its parent, and what ended within its first page with it."""
    parent = node.parent
    assert parent is not None  # the root stays
    page = node.edge[:width]
    parent.children.drop(page)
    parent.forget_child(node)
    if parent.ends is not None:
        parent.ends.forget(node.start, page, parent.children)


def ancestor(at: Position, depth: int) -> Position:
    """Return the place on ``at``'s path that is ``depth`` pages from the beginning.

    ``depth`` MUST NOT be beyond ``at``, nor above the top of its tree.
    """
    node = at.node
    while node.parent is not None and node.start >= depth:
        node = node.parent
    return Position(node, depth - node.start)


def path_slots(at: Position, tier: int = 1) -> Slots:
    """Return the slots in a tier from the top of ``at``'s tree through ``at``, in prefix order.

    Zero for pages without a copy there.
    """
    node: Node | None
    node, pages = at
    if not node.start and tier == 1:
        # All of it is here: what is above has no pages.
        return node.slots[:pages]
    path = []
    while node is not None:
        copies = node if tier == 1 else node.lower
        path.append(array("Q", bytes(8 * len(node.slots))) if copies is None else copies.slots)
        node = node.parent
    path[0] = path[0][: at.pages]
    slots = array("Q")
    for part in reversed(path):
        slots.extend(part)
    return slots


def path_tokens(at: Position, width: int) -> bytes:
    """Return the token bytes from the top of ``at``'s tree through ``at``."""
    path = [at.node.edge[: at.pages * width]]
    node = at.node.parent
    while node is not None:
        path.append(node.edge)
        node = node.parent
    return b"".join(reversed(path))
