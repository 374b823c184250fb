"""The parts in which a large tree is removed: many short steps in place of one long one."""

from collections.abc import Iterable

from kvstore.core.index.node import Node
from kvstore.core.index.protocol import Index

# More work than there is.
ALL = 1 << 62
# The work of removing a node beside its pages, in pages.
NODE_WORK = 16


def removal_work(node: Node) -> int:
    """Returns the work of removing a node, in pages. The root is not removed."""
    return len(node.slots) + NODE_WORK if node.slots else 0


def part_of(index: Index, tops: Iterable[Node], most: int) -> list[Node]:
    """Returns the tops of some subtrees whose removal is ``most`` work at most.

    Returns nothing if the removal of all tops is no more than that. Of a leaf with more pages it
    returns the last ones, and splits the leaf. A leaf is returned however small ``most`` is. Costs
    a few steps for each node of the part, and one for each node on a way down.
    """
    part: list[Node] = []
    for top in tops:
        work = work_of(top, most)
        if work > most:
            return part or _below(index, top, most)
        part.append(top)
        most -= work
    return []


def _below(index: Index, top: Node, most: int) -> list[Node]:
    """Returns siblings below a node, with all below them, or the end of one leaf."""
    node = top
    while node.children:
        node = next(node.children.from_last())
    if len(node.slots) > most:
        index.split(node, len(node.slots) - max(most, 1))
        return [node]
    part, left = [node], most - removal_work(node)
    while node is not top:
        above = node.parent
        assert above is not None  # the top is above it
        part = [node]
        for child in above.children.from_last():
            if child is node:
                continue
            work = work_of(child, left)
            if work > left:
                return part
            left -= work
            part.append(child)
        left -= removal_work(above)
        if above is top or left < 0:
            return part
        # All of them fit, and so does the node that they continue.
        node = above
    return part


def work_of(top: Node, most: int = ALL) -> int:
    """Returns the work of removing ``top`` and all below, or a number above ``most``.

    Costs a few steps for each node that it counts, however many children they have.
    """
    work = removal_work(top)
    below = [iter(top.children.values())]
    while below and work <= most:
        node = next(below[-1], None)
        if node is None:
            below.pop()
            continue
        work += removal_work(node)
        if node.children:
            below.append(iter(node.children.values()))
    return work
