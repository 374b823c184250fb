"""Which nodes become one again: those that only a page gone since, or a hold, had told apart.

A sequence that parts from another cuts its node in two. Where it is evicted a parent
with one child is left, and a walk takes two steps for what was one: after a day there
would be a node a page. So whoever lets a page or a hold go calls :func:`compact`,
when it has no place in the tree in mind any more.
"""

from kvstore.core.node import Node


def continuation(node: Node) -> Node | None:
    """Return the node that ``node`` is to be merged with: what alone continues it, or None.

    A hold tells nodes apart, since it may stand in the middle of the whole, and so that
    whoever holds a place finds it; which pages were used when is kept (``steps.py``). So does
    a child with copies in tier 1 where ``node`` has pages without: a node's are of its first.
    """
    if node.parent is None or node.detached or len(node.children) != 1 or _is_held(node):
        return None
    [child] = node.children.values()
    whole = len(child.edge) >= node.namespace.index.width
    follows = not (node.missing and child.copy_count)
    return child if whole and follows and not _is_held(child) else None


def _is_held(node: Node) -> bool:
    return any(copies.anchors for copies in node.leaves())


def compact(node: Node) -> None:
    """Merge ``node`` with what alone continues it, and with what it alone continues.

    One that is in the index no more is left as it is. Cost: a few looks, and a copy
    of the tokens and slots of what is merged.
    """
    if not node.slots or node.detached:
        return
    index = node.namespace.index
    if not index.joins_nodes:
        return
    if len(node.children) == 1 and continuation(node) is not None:
        node = index.merge(node)
    above = node.parent
    while above is not None and len(above.children) == 1 and continuation(above) is node:
        index.merge(above)
        above = node.parent
