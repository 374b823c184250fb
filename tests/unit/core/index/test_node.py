"""Nodes, and the anchors that holds stand on them by."""

from array import array
from sys import getsizeof

from core.core_builders import make_namespace, paged
from kvstore.core.index.node import Anchor, AnchorSet, Node, Position
from kvstore.core.leases.holds import Hold
from kvstore.core.pool.namespace import Namespace


def make_node(namespace: Namespace, letters: str, start: int = 0) -> Node:
    """Returns a node of one page a letter, under the root."""
    slots = array("Q", range(len(letters)))
    return Node(namespace, 1, paged(letters), slots, namespace.index.root, start)


def test_a_fresh_node_is_attached_and_unheld() -> None:
    """A new node has no children, no anchors, and stands in no order."""
    node = make_node(make_namespace(), "abc")
    assert not node.children
    assert not node.anchors
    assert not node.detached
    assert not node.queued
    assert node.held_pages == 0


def test_children_are_a_nodes_own() -> None:
    """Two nodes never share their children or their anchors."""
    namespace = make_namespace()
    one, other = make_node(namespace, "a"), make_node(namespace, "b")
    one.add_child(paged("c"), other)
    Anchor(Hold(1, namespace, 0.0), one, 1)
    assert not other.children
    assert not other.anchors


def test_an_anchor_is_known_to_its_node() -> None:
    """An anchor stands on its node from the moment it is made."""
    namespace = make_namespace()
    node = make_node(namespace, "abc", start=4)
    anchor = Anchor(Hold(1, namespace, 0.0), node, 2)
    assert set(node.anchors) == {anchor}
    assert anchor.end == 6


def test_the_deepest_anchor_holds() -> None:
    """Pages held on a node are those of the anchor that reaches furthest."""
    namespace = make_namespace()
    node, hold = make_node(namespace, "abcd"), Hold(1, namespace, 0.0)
    for pages in (1, 3, 2):
        Anchor(hold, node, pages)
    assert node.held_pages == 3


def test_an_anchor_moves_to_another_node() -> None:
    """After a move the anchor stands on the new node and no longer on the old one."""
    namespace = make_namespace()
    upper, lower = make_node(namespace, "ab"), make_node(namespace, "cd", start=2)
    anchor = Anchor(Hold(1, namespace, 0.0), upper, 2)
    anchor.move(lower, 1)
    assert not upper.anchors
    assert set(lower.anchors) == {anchor}
    assert anchor.end == 3


def test_an_anchor_moves_within_its_node() -> None:
    """A move on the same node keeps the anchor there, at another depth."""
    namespace = make_namespace()
    node = make_node(namespace, "abc")
    anchor = Anchor(Hold(1, namespace, 0.0), node, 1)
    anchor.move(node, 3)
    assert set(node.anchors) == {anchor}
    assert node.held_pages == 3


def test_a_position_knows_its_depth() -> None:
    """A position's depth is its node's start and the pages into it."""
    assert Position(make_node(make_namespace(), "abc", start=5), 2).depth == 7


def test_the_deepest_anchor_is_found_as_others_go() -> None:
    """Whatever the order in which anchors go, the deepest of those left is the node's."""
    namespace = make_namespace()
    node = make_node(namespace, "abcd")
    hold = Hold(1, namespace, 0.0)
    anchors = [Anchor(hold, node, pages) for pages in (2, 4, 4, 1, 3)]
    left = [anchor.pages for anchor in anchors]
    for anchor in anchors:
        node.anchors.discard(anchor)
        assert anchor not in node.anchors
        left.remove(anchor.pages)
        assert node.held_pages == max(left, default=0)
        assert len(node.anchors) == len(left)
    strangers: list[object] = ["no anchor", None]
    assert not any(each in node.anchors for each in strangers)


def test_holds_that_come_and_go_leave_nothing() -> None:
    """Beneath one that stays, a thousand that held less take no memory once they are gone."""
    namespace = make_namespace()
    node = make_node(namespace, "abcd")
    hold = Hold(1, namespace, 0.0)
    Anchor(hold, node, 4)

    def come_and_go(times: int) -> None:
        for pages in [1, 2, 3] * times:
            node.anchors.discard(Anchor(hold, node, pages))

    def size() -> int:
        return sum(getsizeof(getattr(node.anchors, name)) for name in AnchorSet.__slots__)

    come_and_go(100)
    before = size()
    come_and_go(1000)
    assert size() < 2 * before
    assert node.held_pages == 4
