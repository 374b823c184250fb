"""Nodes that become one again: when, when not, and what the whole is."""

from array import array

from core.core_builders import CoreWorld, letters_of, make_namespace, node_at, paged, plant, shape
from kvstore.core.eviction.protocol import Victim
from kvstore.core.index.node import Node, Position
from kvstore.core.index.radix import continuation, path_slots, path_tokens
from kvstore.core.index.usage import tail_of
from kvstore.core.leases.holds import Pin
from kvstore.core.pool.namespace import Namespace, namespace_of
from kvstore.core.pool.pages import evict, publish, release


def compact(node: Node) -> None:
    """Merges a node with its neighbours where nothing tells them apart."""
    namespace_of(node).index.compact(node)


def parted(parent_use: int = 1, child_use: int = 1) -> tuple[Namespace, Node, Node]:
    """Returns two nodes, "ab" and "cd" below it, of which the upper has no other child any more."""
    namespace = make_namespace()
    plant(namespace, "abx", 0)
    child = plant(namespace, "abcd", child_use).node
    parent = node_at(namespace.index, "ab")
    namespace.index.cut_tail(node_at(namespace.index, "abx"), 1)
    parent.last_use = parent_use
    return namespace, parent, child


def test_the_lower_node_becomes_the_whole() -> None:
    """It has the pages of both under its own number, and stands where the upper one stood."""
    namespace, parent, child = parted()
    end = Position(child, 2)
    slots, tokens = path_slots(end), path_tokens(end, namespace.index.width)
    compact(parent)
    assert shape(namespace.index) == {"abcd": {}}
    assert node_at(namespace.index, "abcd") is child
    assert list(namespace.index.nodes) == [child.number]
    assert (child.start, child.parent) == (0, namespace.index.root)
    assert path_slots(Position(child, 4)) == slots
    assert path_tokens(Position(child, 4), namespace.index.width) == tokens


def test_from_either_node_they_are_found() -> None:
    """Two nodes become one, from the upper node as from the lower one."""
    for lower in (False, True):
        namespace, parent, child = parted()
        compact(child if lower else parent)
        assert shape(namespace.index) == {"abcd": {}}


def test_what_continues_the_lower_node_continues_the_whole() -> None:
    """The whole has the lower node's children, whose parent it is, and a chain becomes one."""
    namespace, _, _ = parted()
    at = plant(namespace, "abcdef", 2)
    plant(namespace, "abcdg", 2)
    for _ in range(2):
        namespace.index.split(node_at(namespace.index, "abcd"), 1)
    assert shape(namespace.index) == {"a": {"b": {"cd": {"ef": {}, "g": {}}}}}
    compact(node_at(namespace.index, "abcd"))
    assert shape(namespace.index) == {"abcd": {"ef": {}, "g": {}}}
    assert at.node.parent is node_at(namespace.index, "abcd")


def test_which_pages_were_used_when_is_kept() -> None:
    """A prefix in use does not make the tail below it look used, nor asked for."""
    for parent_use, child_use in ((2, 1), (1, 1), (1, 2)):
        _, parent, child = parted(parent_use, child_use)
        parent.hits, child.hits = 3, 5
        compact(parent)
        tail, start = tail_of(child, 4), tail_of(child, 2)
        assert (tail.last_use, tail.hits) == (child_use, 5)
        assert (start.last_use, start.hits) == (max(parent_use, child_use), 8)


def test_next_tokens_of_both_are_kept() -> None:
    """Those within the upper node, between both, and after the lower one."""
    for where in ((1, 2, 4), (1, 2), (4,)):
        _, parent, child = parted()
        for depth in where:
            node = parent if depth <= 2 else child
            Position(node, depth - node.start).store_next_token(b"", depth)
        compact(parent)
        assert child.next_tokens is not None
        assert [child.next_tokens.find(depth, b"") for depth in where] == list(where)
        assert len(list(child.next_tokens)) == len(where)
        assert parent.next_tokens is None


def test_a_hold_keeps_nodes_apart_until_it_goes() -> None:
    """The release of the last hold merges two nodes, on the upper one as on the lower one."""
    for depth in (1, 2, 3, 4):
        namespace, parent, child = parted()
        held = parent if depth <= 2 else child
        pins = [Pin(n, namespace, Position(held, depth - held.start), None, 0.0) for n in (1, 2)]
        compact(parent)
        assert shape(namespace.index) == {"ab": {"cd": {}}}
        release(pins[0].anchors)
        assert shape(namespace.index) == {"ab": {"cd": {}}}
        release(pins[1].anchors)
        assert shape(namespace.index) == {"abcd": {}}


def test_a_partial_page_stays_a_node_of_its_own() -> None:
    """It is not whole, and whoever goes on inside it supersedes it."""
    namespace = make_namespace()
    at = plant(namespace, "ab")
    slots = array("Q")
    namespace.arena.take(1, [1], into=slots)
    publish(namespace, at, paged("c")[:4], slots)
    assert continuation(at.node) is None
    compact(at.node)
    assert len(namespace.index.nodes) == 2


def test_neither_the_root_nor_what_left_the_index_is_merged() -> None:
    """The root has no pages; a detached tree belongs to its holds."""
    namespace, parent, child = parted()
    compact(namespace.index.root)
    assert shape(namespace.index) == {"ab": {"cd": {}}}
    namespace.index.detach(parent)
    compact(parent)
    assert list(parent.children.values()) == [child]
    assert continuation(parent) is None


def test_what_is_merged_already_is_left_alone() -> None:
    """A node without pages of its own, evicted or merged, is nothing to merge."""
    namespace, parent, child = parted()
    compact(parent)
    compact(parent)
    assert node_at(namespace.index, "abcd") is child
    # Whoever knew the upper node finds its pages on the way up from there.
    assert (parent.parent, parent.start, len(parent.slots)) == (child, 4, 0)


def test_an_eviction_merges_what_it_left_with_one_child() -> None:
    """Whatever is nominated is evicted first: the tail of what will be merged, too."""
    namespace = make_namespace()
    for use, sequence in enumerate(("abc", "abde", "abf")):
        plant(namespace, sequence, use)
    nodes = [node_at(namespace.index, sequence) for sequence in ("abc", "abde", "abf")]
    evict([Victim(nodes[0], 1), Victim(nodes[1], 1)])
    assert shape(namespace.index) == {"ab": {"d": {}, "f": {}}}
    evict([Victim(nodes[2], 1)])
    assert shape(namespace.index) == {"abd": {}}
    plant(namespace, "abg", 9)
    evict([Victim(nodes[1], 1)])
    assert shape(namespace.index) == {"abg": {}}


def test_a_parent_that_goes_too_is_not_merged() -> None:
    """A family of nodes that is evicted whole leaves nothing to merge."""
    namespace = make_namespace()
    for letters_ in ("abc", "abd"):
        plant(namespace, letters_, 1)
    parent = node_at(namespace.index, "ab")
    victims = [Victim(node_at(namespace.index, each), 1) for each in ("abc", "abd")]
    assert evict([*victims, Victim(parent, 2)]) == 4
    assert shape(namespace.index) == {}


def test_a_removal_merges_what_it_left() -> None:
    """A node that an operator's removal leaves with one child is merged with it."""
    world = CoreWorld()
    world.worker.publish("abc", "abd")
    assert world.shape() == {"ab": {"c": {}, "d": {}}}
    world.evict_prefix("abc")
    assert world.shape() == {"abd": {}}
    world.laws.check()


def test_parts_of_a_cut_join_their_neighbours() -> None:
    """A hold below the cut is none of the upper part's, and one above none of the lower's."""
    world = CoreWorld(slots=16)
    world.worker.publish("ab", "abcdef")
    index = world.namespace.index
    index.split(node_at(index, "abcdef"), 2)
    world.worker.match("abcdef", 1)
    world.worker.publish("abcx")
    assert world.shape() == {"abc": {"def": {}, "x": {}}}
    world.laws.check()


def test_a_merged_page_is_found_from_the_node_that_it_was_in() -> None:
    """From the upper node's remains the way up leads to its pages, also after another cut."""
    namespace, parent, child = parted()
    compact(parent)
    upper = namespace.index.split(child, 1)
    assert parent.parent is child
    assert child.parent is upper
    assert letters_of(upper.edge, namespace.index.width) == "a"
