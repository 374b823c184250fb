"""Condemned nodes: pages that nobody finds any more, and that leave the tree in parts.

A node that is condemned stays a child of its parent, under a key that no sequence has. So no walk
comes to it or to anything below it, and the same tokens may be inserted beside it. Until its part
leaves, a node below it is in the tree as any other: it may be evicted, and holds keep it.
"""

from kvstore.core.index.node import Node, Position


def key_of(node: Node, width: int) -> bytes:
    """Returns the key of a node among its siblings; a page's tokens take ``width`` bytes."""
    condemned = node.tree.condemned
    if condemned and node in condemned:
        return condemned[node]
    return node.edge[:width]


def has_left(node: Node) -> bool:
    """Returns True if a node is out of the index, or below a condemned one.

    Costs a step for each node above while any node of its tree is condemned.
    """
    return node.detached or (bool(node.tree.condemned) and _top_of(node) is not None)


def attached_end(at: Position) -> Position:
    """Returns the end of the part of a path that walks still find: before a condemned page.

    ``at`` MUST be in the tree.
    """
    top = _top_of(at.node) if at.node.tree.condemned else None
    if top is None:
        return at
    above = top.parent
    assert above is not None  # the root is not condemned
    return Position(above, len(above.slots))


def _top_of(node: Node) -> Node | None:
    """Returns the highest condemned node among ``node`` and those above it, or None."""
    condemned, found = node.tree.condemned, None
    above: Node | None = node
    while above is not None:
        if above in condemned:
            found = above
        above = above.parent
    return found
