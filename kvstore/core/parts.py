"""Parts of a large tree, so that it goes in many short steps and not in one long one."""

from collections.abc import Iterable
from itertools import islice

from kvstore.core.node import Node
from kvstore.core.radix import subtree


def part_of(tops: Iterable[Node], most: int) -> list[Node]:
    """Return some of what nodes and all below them are, that has ``most`` nodes at most.

    By the nodes at its top, one at least; none where all of it is no more than that. Cost:
    some steps for each of ``most``, and one for each node on a way down.
    """
    part: list[Node] = []
    for top in tops:
        size = _size(top, most)
        if size > most:
            return part or _below(top, most)
        part.append(top)
        most -= size
    return []


def _below(top: Node, most: int) -> list[Node]:
    """Return siblings below a node that have ``most`` nodes at most, with all below them."""
    node = top
    while node.children:
        node = next(reversed(node.children.values()))
    left = most - 1
    while True:
        above = node.parent
        assert above is not None  # the top is above it
        part = [node]
        for child in reversed(above.children.values()):
            if child is node:
                continue
            size = _size(child, left)
            if size > left:
                return part
            left -= size
            part.append(child)
        if above is top or not left:
            return part
        # All of them fit, and what they continue does too.
        node, left = above, left - 1


def _size(top: Node, most: int) -> int:
    """Return how many nodes there are from ``top`` on; of more than ``most``, one more."""
    return sum(1 for _ in islice(subtree(top), most + 1))
