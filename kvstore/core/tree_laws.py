"""The laws of a tree of pages, and of their copies in the tiers."""

from itertools import pairwise

from kvstore.core.index.node import Node, Position
from kvstore.core.index.protocol import Index
from kvstore.core.index.radix import continuation, subtree
from kvstore.core.law import law


def check_tree(index: Index) -> None:
    """Raise ``LawBroken`` unless an index is as it has to be."""
    nodes = list(subtree(index.root))[1:]
    law({n.number for n in nodes} == set(index.nodes), "only nodes of the tree are listed")
    for node in nodes:
        parent = node.parent
        law(parent is not None, "a page is cached only if its parent is", node.number)
        assert parent is not None
        key = node.edge[: index.width]
        law(parent.children.get(key) is node, "a child stands under its first page", node.number)
        law(
            node.start == parent.start + len(parent.slots),
            "a node starts where its parent ends",
            node.number,
        )
        law(bool(node.slots), "a node has pages", node.number)
        whole = len(node.edge) == len(node.slots) * index.width
        partial = 0 < len(node.edge) < index.width and len(node.slots) == 1
        law(whole or partial, "an edge has its pages' tokens", node.number)
        law(whole or not node.children, "nothing continues a partial page", node.number)
        law(not node.detached, "a page in the index is not detached", node.number)
        _check_copies(node, parent)
    for node in (index.root, *nodes):
        _check_siblings(node)
        _check_ends(index, node)
        check_counts(node)
    pages = sum(len(node.slots) for node in nodes)
    law(pages == index.page_count, "the index counts its pages", pages, index.page_count)


def _check_copies(node: Node, parent: Node) -> None:
    for copies in node.leaves():
        law(copies.copy_count > 0 or copies is node, "tier 2's copies are some", node.number)
        there = all(copies.copied()) and not any(copies.slots[copies.copy_count :])
        law(there, "a node's copies in a tier are of its first pages", node.number)
        law(len(copies.slots) == len(node.slots), "tiers have the same pages", node.number)
    cached = node.copied_pages == len(node.slots)
    law(cached, "a cached page has a copy in some tier", node.number)
    if node.lower is not None:
        whole = parent.parent is None or parent.lower_count == len(parent.slots)
        law(whole, "a page is in tier 2 only if its parent is", node.number)


def check_counts(node: Node) -> None:
    """Raise ``LawBroken`` unless a node knows in which tiers its children have copies."""
    children = node.children.values()
    bare = sum(not any(each.copy_count for each in subtree(child)) for child in children)
    law(bare == node.bare, "children without copies in tier 1 are counted", node.number)
    if node.lower is not None:
        below = sum(child.lower is not None for child in children)
        law(below == node.lower.below, "children with copies in tier 2 are counted", node.number)


def check_joined(index: Index) -> None:
    """Raise ``LawBroken`` where two nodes could be one."""
    for node in index.nodes.values() if index.joins_nodes else ():
        law(continuation(node) is None, "two nodes are not where one would do", node.number)


def _check_siblings(parent: Node) -> None:
    keys = sorted(parent.children)
    law(
        parent.children.begun_by(b"") == [parent.children[key] for key in keys],
        "siblings stand in order",
        parent.number,
    )
    for before, after in pairwise(keys):
        law(not after.startswith(before), "no page begins with a sibling", parent.number)


def _check_ends(index: Index, node: Node) -> None:
    for depth, tail in node.ends or ():
        first = node.start + 1 if node.parent else 0
        here = first <= depth <= node.start + len(node.slots)
        law(here, "an end stands on its last whole page", node.number, depth)
        at = Position(node, depth - node.start)
        cached = not tail or index.beginning_with(at, tail) is not None
        law(cached and bool(tail or depth), "an end's tokens are cached", node.number, depth)
