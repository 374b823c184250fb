"""Parts of a large tree, so that it goes in many short steps and not in one long one."""

from itertools import islice

from kvstore.core.index import Index
from kvstore.core.node import Node
from kvstore.core.radix import subtree


def part_of(index: Index, most: int) -> list[Node]:
    """Return siblings that have ``most`` nodes at most, with all that is below them.

    One at least; none of an empty index. Cost: some steps for each of ``most``, and one for
    each node on the way from the one made last to a leaf below it.
    """
    if not index.nodes:
        return []
    top = index.nodes[next(reversed(index.nodes))]
    while top.children:
        top = next(reversed(top.children.values()))
    left = most - 1
    while True:
        above = top.parent
        assert above is not None  # the root is none of the nodes
        part = [top]
        for child in reversed(above.children.values()):
            if child is top:
                continue
            size = sum(1 for _ in islice(subtree(child), left + 1))
            if size > left:
                return part
            left -= size
            part.append(child)
        if above.parent is None or not left:
            return part
        # All of them fit, and what they continue does too.
        top, left = above, left - 1
