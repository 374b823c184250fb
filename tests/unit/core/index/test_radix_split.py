"""Splitting a node of the radix tree: what moves, what stays, and what is never shared."""

from core.core_builders import letters_of, make_namespace, node_at, paged, plant, shape
from kvstore.core.index.node import Anchor, Node
from kvstore.core.index.radix import path_slots, path_tokens, subtree
from kvstore.core.leases.holds import Hold
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.pages import evict


def test_a_split_cuts_pages_and_slots_alike() -> None:
    """The upper part has the first pages with their slots, the lower one the rest."""
    namespace = make_namespace()
    node = plant(namespace, "abcde").node
    slots = list(node.slots)
    upper = namespace.index.split(node, 2)
    assert (upper.edge, list(upper.slots)) == (paged("ab"), slots[:2])
    assert (node.edge, list(node.slots)) == (paged("cde"), slots[2:])
    assert (upper.start, node.start) == (0, 2)


def test_the_existing_node_becomes_the_lower_part() -> None:
    """The deepest page stays in the node that callers know, under its old number."""
    namespace = make_namespace()
    node = plant(namespace, "abc").node
    number = node.number
    upper = namespace.index.split(node, 1)
    assert node_at(namespace.index, "abc") is node
    assert node.number == number
    assert set(namespace.index.nodes.values()) == {upper, node}


def test_a_split_changes_no_page() -> None:
    """The index counts the same pages before and after, and finds the same slots."""
    namespace = make_namespace()
    at = plant(namespace, "abcd")
    slots, pages = path_slots(at), namespace.index.page_count
    namespace.index.split(at.node, 3)
    assert path_slots(plant(namespace, "abcd")) == slots
    assert namespace.index.page_count == pages


def test_the_upper_part_inherits_when_the_lower_goes() -> None:
    """A use below the cut stays there; the upper part inherits it once nothing is below."""
    namespace = make_namespace()
    node = plant(namespace, "abcd", last_use=17).node
    node.hits = 5
    upper = namespace.index.split(node, 2)
    assert (upper.last_use, upper.hits) == (0, 0)
    assert (node.last_use, node.hits) == (17, 5)
    evict(namespace.arena.policy.nominate(2))
    assert (upper.last_use, upper.hits) == (17, 5)


def family(namespace: Namespace) -> tuple[Node, Node, Node, Node]:
    """Split a node that has a parent and a child: (parent, upper, lower, child)."""
    for letters in ("ab", "abcdef", "abx", "abcdefgh", "abcdefyz"):
        plant(namespace, letters)
    lower = node_at(namespace.index, "abcdef")
    parent = lower.parent
    assert parent is not None
    child = node_at(namespace.index, "abcdefgh")
    return parent, namespace.index.split(lower, 2), lower, child


def test_pitfall_children_shared_after_a_split() -> None:
    """The upper part has the lower one as its only child, the lower one all that were there."""
    namespace = make_namespace()
    _, upper, lower, _ = family(namespace)
    assert upper.children is not lower.children
    assert list(upper.children.values()) == [lower]
    assert set(lower.children) == {paged("g"), paged("y")}
    plant(namespace, "abcdq")
    assert paged("q") in upper.children
    assert paged("q") not in lower.children
    plant(namespace, "abcdefr")
    assert paged("r") in lower.children
    assert paged("r") not in upper.children


def test_pitfall_stale_parent_pointers() -> None:
    """After a split every node's parent is the one whose child it is, and starts add up."""
    namespace = make_namespace()
    parent, upper, lower, child = family(namespace)
    assert (upper.parent, lower.parent, child.parent) == (parent, upper, lower)
    assert parent.children[paged("c")] is upper
    for node in list(subtree(namespace.index.root))[1:]:
        assert node.parent is not None
        assert node.parent.children[node.edge[: namespace.index.width]] is node
        assert node.start == node.parent.start + len(node.parent.slots)


def test_paths_are_whole_after_a_split() -> None:
    """From below the cut the whole path's tokens and slots can still be read."""
    namespace = make_namespace()
    slots = path_slots(plant(namespace, "abcdef"))
    end = plant(namespace, "abcdefgh")
    for cut in (4, 2, 1):
        namespace.index.split(node_at(namespace.index, "abcdef"[:cut]), cut)
        assert path_slots(end)[:6] == slots
        assert path_tokens(end, namespace.index.width) == paged("abcdefgh")


def test_splits_at_every_page_leave_one_page_a_node() -> None:
    """A node can be cut again and again, down to single pages."""
    namespace = make_namespace()
    node = plant(namespace, "abcd").node
    for _ in range(3):
        namespace.index.split(node, 1)
    assert shape(namespace.index) == {"a": {"b": {"c": {"d": {}}}}}
    assert [each.start for each in subtree(namespace.index.root)] == [0, 0, 1, 2, 3]


def test_holds_above_the_cut_move_up() -> None:
    """Anchors at or above the cut stand on the upper part, the others where they stood."""
    namespace = make_namespace()
    node = plant(namespace, "abcde").node
    hold = Hold(1, namespace, 0.0)
    anchors = {pages: Anchor(hold, node, pages) for pages in range(1, 6)}
    upper = namespace.index.split(node, 3)
    assert set(upper.anchors) == {anchors[1], anchors[2], anchors[3]}
    assert set(node.anchors) == {anchors[4], anchors[5]}
    assert (upper.held_pages, node.held_pages) == (3, 2)


def test_a_hold_survives_splits_at_its_depth() -> None:
    """Wherever the node is cut, an anchor's end is the page that it was on."""
    for cut in range(1, 6):
        namespace = make_namespace()
        node = plant(namespace, "abcdef").node
        hold = Hold(1, namespace, 0.0)
        anchors = [Anchor(hold, node, pages) for pages in range(1, 7)]
        namespace.index.split(node, cut)
        assert [anchor.end for anchor in anchors] == [1, 2, 3, 4, 5, 6]
        assert all(1 <= each.pages <= len(each.node.slots) for each in anchors)


def test_insertion_splits_exactly_where_sequences_part() -> None:
    """A sequence that parts inside an edge cuts it there and nowhere else."""
    namespace = make_namespace()
    plant(namespace, "abcdef")
    at = plant(namespace, "abcxy")
    assert shape(namespace.index) == {"abc": {"def": {}, "xy": {}}}
    assert letters_of(at.node.edge, namespace.index.width) == "xy"
    assert at.node.start == 3
