"""The default index: a compressed radix tree over token bytes, page by page.

The walk keeps the prompt as one ``bytes`` and moves a cursor over it. It compares an edge
by ``startswith``, which is a memcmp without a slice. 100,000 tokens in 196 nodes take
89 us in pure Python; a slice of the remaining key at each node takes 6,860 us (medians on
two slow cores). A match changes no structure.

A new sequence that diverges inside a node splits the node in two. After the new sequence is
evicted, a parent with one child remains, and a walk takes two steps in place of one. Within
a day there would be a node for each page. Code that releases a page or a hold therefore
calls :meth:`RadixIndex.compact`, once it keeps no place in the tree.
"""

from array import array
from collections.abc import Iterator

from kvstore.core.index.children import NO_CHILDREN
from kvstore.core.index.condemned import key_of
from kvstore.core.index.jumps import Jump, slots_between
from kvstore.core.index.node import Node, Position, Tree
from kvstore.core.index.usage import cut_uses, divide_uses, join_uses
from kvstore.core.values.group_pages import MARK, hidden_key, is_group_page
from kvstore.core.values.slots import Slots
from kvstore.core.values.tokens import TOKEN_BYTES, common_pages, common_tokens

# A named tuple's constructor costs a Python frame: with it an eviction takes 8 % longer.
_new_tuple = tuple.__new__


class RadixIndex:
    """The tree of one namespace. Not thread-safe. Knows no leases and no states of slots."""

    # A node may have many pages, and two nodes become one where nothing tells them apart.
    joins_nodes = True
    # Nodes that one jump passes. A walk of fewer than twice as many leaves none.
    jump_nodes = 64

    def __init__(self, tree: Tree, page_tokens: int) -> None:
        self.width = page_tokens * TOKEN_BYTES
        self.root = Node(tree, 0, b"", array("Q"), None, 0)
        self.nodes: dict[int, Node] = {}
        self.page_count = 0
        self._last_number = 0

    def descend(self, at: Position, tokens: bytes, pages: int) -> Position:
        """Returns how far the first ``pages`` pages of ``tokens`` are cached below ``at``.

        Changes nothing. Never ends with a page of a KV cache group. Costs a memcmp over the prompt,
        and a step for each node.
        """
        node, depth = at
        width = self.width
        cursor, end = 0, pages * width
        begin, steps = node.start + depth, 0
        if depth < len(node.slots):
            common = common_pages(node.edge, depth * width, tokens, 0, end, width)
            depth += common
            cursor = common * width
            if depth < len(node.slots):
                return Position(node, depth)
        while cursor < end:
            jump = node.jump_down
            if jump is not None and jump.leads(tokens, cursor, end):
                cursor += len(jump.tokens) - width
                node = jump.below
            else:
                child = node.children.get(tokens[cursor : cursor + width])
                if child is None:
                    break
                node = child
                steps += 1
            stop = cursor + len(node.edge)
            if stop <= end and tokens.startswith(node.edge, cursor):
                cursor, depth = stop, len(node.slots)
                continue
            depth = common_pages(node.edge, 0, tokens, cursor, end, width)
            break
        if node.edge.startswith(MARK):
            node, depth = end_of_path(node)
        if steps > 2 * self.jump_nodes:
            leave_jumps(node, tokens, begin, self.jump_nodes)
        return _new_tuple(Position, (node, depth))

    def nearest(self, at: Position, tokens: bytes) -> tuple[Position, int] | None:
        """Returns the page after ``at`` that agrees longest with ``tokens``, and for how many.

        The page is given by its end; ``tokens`` are at most a page's. Returns None if not one
        token agrees. Never returns a page of a KV cache group. Costs a bisection of the children.
        """
        if is_group_page(tokens):
            return None
        node, depth = at
        if depth < len(node.slots):
            start = depth * self.width
            count = common_tokens(node.edge[start : start + self.width], tokens)
            return (Position(node, depth + 1), count) if count else None
        found = node.children.nearest(tokens)
        return None if found is None else (Position(found[0], 1), found[1])

    def beginning_with(self, at: Position, tokens: bytes) -> Position | None:
        """Returns the end of the page after ``at`` that begins with ``tokens``, or None."""
        found = self.nearest(at, tokens)
        if found is None or found[1] * TOKEN_BYTES < len(tokens):
            return None
        return found[0]

    def extend(self, at: Position, tokens: bytes, slots: Slots) -> Position:
        """Adds pages with ``slots`` and ``tokens`` after ``at`` and returns their end.

        Adds whole pages, or one partial page. The first of them MUST NOT be cached below ``at``,
        nor begin with a page there, nor may a page there begin with it. Splits the node that
        ``at`` is inside of. A leaf grows in place, except by a page of a KV cache group.
        """
        node, depth = at
        if depth < len(node.slots):
            node = self.split(node, depth)
        self.page_count += len(slots)
        grows = node.parent is not None and not (node.children or node.missing)
        if grows and len(tokens) >= self.width and not is_group_page(tokens):
            node.edge += tokens
            node.add_pages(slots)
            return Position(node, len(node.slots))
        was_bare = node.is_bare
        child = self._new_node(tokens, slots, node, node.start + len(node.slots))
        if was_bare:
            node.cover()
        return _new_tuple(Position, (child, len(slots)))

    def hang(self, above: Node, tokens: bytes, slots: Slots, missing: int = 0) -> Node:
        """Adds a node below the end of ``above`` and returns it, as :meth:`extend` does.

        Its last ``missing`` pages have no copy in tier 1. A node is never grown.
        """
        self.page_count += len(slots)
        was_bare = above.is_bare
        child = self._new_node(tokens, slots, above, above.start + len(above.slots))
        child.missing = missing
        if missing == len(slots):
            above.bare += 1
        elif was_bare:
            above.cover()
        return child

    def tops_beginning_with(self, at: Position, tokens: bytes) -> list[Node]:
        """Returns the nodes that start with a page after ``at`` which begins with ``tokens``.

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
        """Cuts ``node`` after ``pages`` pages and returns the new upper part.

        The existing node becomes the lower part, so holds below the cut stay where they are.
        Holds at or above it move up.
        """
        cut = pages * self.width
        parent = node.parent
        assert parent is not None  # the root has no pages to cut between
        key = node.tree.condemned.pop(node, b"")
        upper = self._new_node(node.edge[:cut], array("Q"), parent, node.start, key)
        if key:
            node.tree.condemned[upper] = key
        divide_uses(upper, node, pages)
        node.edge = node.edge[cut:]
        node.start += pages
        node.parent = upper
        upper.add_child(node.edge[: self.width], node)
        if node.next_tokens is not None:
            upper.next_tokens = node.next_tokens.divide(node.start)
        node.give_upper(upper, pages)
        node.tree.leaf_changed(upper)
        return upper

    def merge(self, node: Node) -> Node:
        """Joins ``node`` with its only child and returns that child, which now has all pages.

        Nobody may hold either. The child MUST NOT be a partial page, and ``node`` MUST NOT be the
        root. A caller that still knows ``node`` finds it without pages, below its former child and
        after that child's end. Costs a copy of both nodes' tokens and slots.
        """
        [child] = node.children.values()
        parent = node.parent
        assert parent is not None  # the root stays
        join_uses(node, len(node.slots), child)
        child.edge = node.edge + child.edge
        child.take_upper(node)
        child.start = node.start
        child.parent = parent
        if node.next_tokens is not None:
            child.next_tokens = node.next_tokens.join(child.next_tokens)
        parent.add_child(child.edge[: self.width], child)
        self._forget(node)
        node.edge, node.next_tokens, node.steps = b"", None, None
        node.children = NO_CHILDREN
        node.parent, node.start = child, child.start + len(child.slots)
        node.tree.leaf_changed(child)
        return child

    def compact(self, node: Node) -> None:
        """Merges ``node`` with its only child and with its parent where nothing tells them apart.

        Does nothing for a node that is no longer in the index. Costs a few looks, and a copy of
        the tokens and slots that are merged.
        """
        if not node.slots or node.detached:
            return
        if len(node.children) == 1 and continuation(node) is not None:
            node = self.merge(node)
        above = node.parent
        while above is not None and len(above.children) == 1 and continuation(above) is node:
            self.merge(above)
            above = node.parent

    def cut_tail(self, node: Node, pages: int) -> Slots:
        """Removes the last ``pages`` pages of a leaf and returns their slots.

        A leaf without pages left leaves the tree.
        """
        keep = len(node.slots) - pages
        slots = trim(node, keep, self.width)
        self.page_count -= pages
        if not keep:
            self._forget(node)
        return slots

    def condemn(self, node: Node) -> None:
        """Hides ``node`` and everything below it from all walks, until they leave the tree.

        The same tokens may be inserted beside it. ``node`` MUST NOT be condemned already, nor
        below one that is. Costs a step for each node above.
        """
        parent = node.parent
        assert parent is not None  # the root stays
        self._last_number += 1
        key = hidden_key(self._last_number)
        parent.children.drop(node.edge[: self.width])
        parent.add_child(key, node)
        node.tree.condemned[node] = key
        above: Node | None = parent
        while above is not None:
            jump = above.jump_down
            if jump is not None and jump.end >= node.start:
                # It may lead past the node.
                _drop(jump)
            above = above.parent

    def detach(self, node: Node) -> list[Node]:
        """Removes ``node`` and everything below it from the tree; parents come before children.

        The nodes keep their links among each other. The first has no parent.
        """
        _unhook(node, self.width)
        node.parent = None
        taken = list(subtree(node))
        for each in taken:
            each.detached = True
            each.next_tokens = None
            self.page_count -= len(each.slots)
            self._forget(each)
        return taken

    def _new_node(
        self, edge: bytes, slots: Slots, parent: Node, start: int, key: bytes = b""
    ) -> Node:
        """Makes a node, under a ``key`` other than its first page if one is given."""
        self._last_number += 1
        node = Node(self.root.tree, self._last_number, edge, slots, parent, start)
        parent.add_child(key or edge[: self.width], node)
        self.nodes[node.number] = node
        return node

    def _forget(self, node: Node) -> None:
        del self.nodes[node.number]
        _drop(node.jump_up)
        _drop(node.jump_down)


def leave_jumps(last: Node, tokens: bytes, begin: int, count: int) -> None:
    """Makes jumps along a walk that ended in ``last``, each over ``count`` nodes.

    ``tokens`` are those that were walked, from page ``begin`` on. Costs a step for each node, and
    a copy of the tokens.
    """
    path: list[Node] = []
    node: Node | None = last
    while node is not None and node.start >= begin:
        path.append(node)
        node = node.parent
    path.reverse()
    width, moves = last.tree.width, last.tree.moves_copies
    for number in range(0, len(path) - count, count):
        above, below = path[number], path[number + count]
        first = above.start + len(above.slots)
        part = tokens[(first - begin) * width : (below.start + 1 - begin) * width]
        slots = None if moves else slots_between(path[number + 1 : number + count])
        _drop(above.jump_down)
        _drop(below.jump_up)
        above.jump_down = below.jump_up = Jump(above, below, part, slots)


def _drop(jump: Jump[Node] | None) -> None:
    if jump is not None:
        jump.above.jump_down = jump.below.jump_up = None


def subtree(top: Node) -> Iterator[Node]:
    """Yields ``top`` and everything below it, parents before children."""
    stack = [top]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())


def trim(leaf: Node, keep: int, width: int) -> Slots:
    """Cuts a leaf down to its first ``keep`` pages and returns the slots cut off.

    Unhooks a leaf without pages left from its parent.
    """
    cut_uses(leaf, keep)
    if leaf.next_tokens is not None:
        leaf.next_tokens.cut(leaf.start + keep, leaf.start + len(leaf.slots))
    if keep == 0 and leaf.parent is not None:
        _unhook(leaf, width)
    leaf.edge = leaf.edge[: keep * width]
    return leaf.cut_pages(keep)


def _unhook(node: Node, width: int) -> None:
    """Removes ``node`` from its parent, together with the next tokens within its first page."""
    parent = node.parent
    assert parent is not None  # the root stays
    page = key_of(node, width)
    parent.children.drop(page)
    parent.forget_child(node)
    condemned = node.tree.condemned
    if condemned and condemned.pop(node, None) is not None:
        # Its next tokens went when it was condemned. Others may be of a page in its place.
        return
    if parent.next_tokens is not None:
        parent.next_tokens.forget(node.start, page, parent.children.has_begun_by)


def end_of_path(group_page: Node) -> Position:
    """Returns the place on the path that a page of a KV cache group belongs to."""
    above = group_page.parent
    assert above is not None  # it is a child
    return Position(above, len(above.slots))


def ancestor(at: Position, depth: int) -> Position:
    """Returns the place on ``at``'s path that is ``depth`` pages from the beginning.

    ``depth`` MUST NOT be beyond ``at``, nor above the top of its tree.
    """
    node = at.node
    while node.parent is not None and node.start >= depth:
        node = node.parent
    return Position(node, depth - node.start)


def path_slots(at: Position, tier: int = 1) -> Slots:
    """Returns the slots in a tier from the top of ``at``'s tree through ``at``, in prefix order.

    The entry of a page without a copy there is zero.
    """
    node: Node | None
    node, pages = at
    if not node.start and tier == 1:
        # The root, which is above, has no pages.
        return node.slots[:pages]
    path = []
    while node is not None:
        copies = node if tier == 1 else node.lower
        path.append(array("Q", bytes(8 * len(node.slots))) if copies is None else copies.slots)
        jump = node.jump_up if tier == 1 else None
        if jump is not None and jump.slots is not None and jump.holds:
            path.append(jump.slots)
            node = jump.above
        else:
            node = node.parent
    path[0] = path[0][: at.pages]
    slots = array("Q")
    for part in reversed(path):
        slots.extend(part)
    return slots


def path_tokens(at: Position, width: int) -> bytes:
    """Returns the token bytes from the top of ``at``'s tree through ``at``."""
    path = [at.node.edge[: at.pages * width]]
    node = at.node.parent
    while node is not None:
        path.append(node.edge)
        node = node.parent
    return b"".join(reversed(path))


def continuation(node: Node) -> Node | None:
    """Returns the child that ``node`` can be merged with, or None.

    Merges a node with its only child once no hold needs the split: a hold may end in the middle
    of the merged node, and its holder must find its place. A child with copies in tier 1 stays
    apart from a node that lacks some, since a node's copies are of its first pages. A page of a
    KV cache group is a node of its own, and so is a condemned node. Uses do not keep nodes apart
    (``usage.py``).
    """
    if node.parent is None or node.detached or len(node.children) != 1 or _is_held(node):
        return None
    [child] = node.children.values()
    condemned = node.tree.condemned
    if condemned and (node in condemned or child in condemned):
        return None
    whole = len(child.edge) >= node.tree.width and not is_group_page(child.edge)
    follows = not (node.missing and child.copy_count)
    return child if whole and follows and not _is_held(child) else None


def _is_held(node: Node) -> bool:
    return any(copies.anchors for copies in node.leaves())
