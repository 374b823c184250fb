"""The radix tree by itself: walking, growing, cutting; splits are in test_radix_split.py."""

from array import array

import pytest

from core.core_builders import FILLER, letters_of, make_namespace, node_at, paged, picture, shape
from kvstore.core.index.node import Node, Position
from kvstore.core.index.radix import RadixIndex, ancestor, path_slots, path_tokens, subtree, trim


class CountingChildren(dict[bytes, Node]):
    """A node's children, that count how often one is looked for."""

    lookups = 0

    def get(self, key: bytes, default: Node | None = None) -> Node | None:  # type: ignore[override]
        """Count, and look."""
        CountingChildren.lookups += 1
        return super().get(key, default)


def make_index(*sequences: str, page_tokens: int = 2) -> RadixIndex:
    """Returns an index of sequences, whose slots are numbered in order of insertion."""
    index = make_namespace(page_tokens=page_tokens).index
    for letters in sequences:
        plant(index, letters)
    return index


def plant(index: RadixIndex, letters: str) -> Position:
    """Adds what is not there of a sequence; slots go on from the number of pages there."""
    at = walk(index, letters)
    first = index.page_count
    slots = array("Q", range(first, first + len(letters) - at.depth))
    return index.extend(at, paged(letters[at.depth :], index.width // 4), slots) if slots else at


def walk(index: RadixIndex, letters: str) -> Position:
    """Descends from the root along a sequence."""
    return index.descend(Position(index.root, 0), paged(letters, index.width // 4), len(letters))


def count_lookups(index: RadixIndex) -> None:
    """Makes all nodes count lookups of children, from zero."""
    for node in subtree(index.root):
        node.children = CountingChildren(node.children)
    CountingChildren.lookups = 0


def test_an_empty_index_has_nothing() -> None:
    """In an empty index every walk ends at the root."""
    index = make_index()
    assert walk(index, "abc") == Position(index.root, 0)
    assert index.page_count == 0


@pytest.mark.parametrize("page_tokens", [1, 2, 16])
@pytest.mark.parametrize(
    ("letters", "depth"),
    [
        *(("", 0), ("x", 0), ("a", 1), ("ab", 2), ("abx", 2), ("abc", 3), ("abcd", 4)),
        *(("abcdxx", 4), ("abce", 4), ("abcef", 5), ("abcefx", 5), ("g", 1), ("ga", 1)),
    ],
)
def test_a_walk_ends_where_the_sequence_parts(page_tokens: int, letters: str, depth: int) -> None:
    """A walk goes as far as the pages agree: at a node's end, inside an edge, or not at all."""
    index = make_index("abcd", "abcef", "g", page_tokens=page_tokens)
    assert walk(index, letters).depth == depth


def test_a_walk_starts_anywhere() -> None:
    """From inside an edge or from a node's end a walk goes on with the rest of the sequence."""
    index = make_index("abcd", "abef")
    inside = walk(index, "a")
    assert index.descend(inside, paged("bcd"), 3).depth == 4
    assert index.descend(inside, paged("bxx"), 3).depth == 2
    assert index.descend(inside, paged("x"), 1) == inside
    end = walk(index, "ab")
    assert index.descend(end, paged("ef"), 2).depth == 4
    assert index.descend(end, paged("xx"), 2) == end


def test_a_walk_reads_no_more_pages_than_asked() -> None:
    """Pages of the sequence beyond those asked for play no part, inside an edge or across."""
    index = make_index("abcd", "abef")
    for pages in range(5):
        assert index.descend(Position(index.root, 0), paged("abcd"), pages).depth == pages
    assert index.descend(walk(index, "a"), paged("bcd"), 1).depth == 2


def test_tokens_that_fill_no_page_are_not_cached() -> None:
    """A part of a page after the last whole one leads no further."""
    index = make_index("ab")
    root = Position(index.root, 0)
    assert index.descend(root, paged("ab") + FILLER, 2).depth == 2
    assert index.descend(root, paged("a") + FILLER, 1).depth == 1


def test_a_walk_changes_nothing() -> None:
    """After walks of every kind the tree is what it was, to the last field."""
    index = make_index("abcd", "abef", "gg")
    before = picture(index)
    for letters in ("", "a", "abcd", "abx", "abexx", "ggg", "zzz"):
        walk(index, letters)
    assert picture(index) == before


def test_a_walk_costs_a_lookup_a_node() -> None:
    """Children are looked for once a node on the path, however many siblings there are."""
    index = make_index(*("ab" + chr(0x4000 + k) for k in range(1000)))
    count_lookups(index)
    assert walk(index, "ab" + chr(0x4000 + 500)).depth == 3
    assert CountingChildren.lookups == 2


def test_a_long_edge_costs_one_lookup() -> None:
    """A run of a thousand pages in one node is one lookup."""
    letters = "".join(chr(0x4000 + k) for k in range(1000))
    index = make_index(letters)
    count_lookups(index)
    assert walk(index, letters).depth == 1000
    assert CountingChildren.lookups == 1


def test_a_leaf_grows_in_place() -> None:
    """Pages that continue a leaf's end make no node: prefill by chunks is one node."""
    index = make_index("ab")
    leaf = node_at(index, "ab")
    for letters in ("abc", "abcd", "abcdefgh"):
        assert plant(index, letters) == Position(leaf, len(letters))
    assert shape(index) == {"abcdefgh": {}}
    assert list(leaf.slots) == list(range(8))
    assert index.page_count == 8


def test_the_root_does_not_grow() -> None:
    """The first pages of an index are a child of the root, not the root."""
    index = make_index("ab")
    assert not index.root.slots
    assert node_at(index, "ab").parent is index.root


def test_what_continues_an_inner_node_is_a_child() -> None:
    """A node that has children gets another one, and keeps its own pages."""
    index = make_index("abc", "abd")
    inner = node_at(index, "ab")
    at = plant(index, "abef")
    assert shape(index) == {"ab": {"c": {}, "d": {}, "ef": {}}}
    assert at.node.parent is inner
    assert at.node.start == 2


def test_node_numbers_are_never_used_again() -> None:
    """A node made after others went has a number of its own."""
    index = make_index("a", "b")
    numbers = set(index.nodes)
    index.cut_tail(node_at(index, "b"), 1)
    assert plant(index, "c").node.number not in numbers


def test_cutting_a_tail_leaves_the_rest() -> None:
    """The last pages of a leaf go, their slots are returned in order, the others stay."""
    index = make_index("abcde")
    assert list(index.cut_tail(node_at(index, "abcde"), 2)) == [3, 4]
    assert shape(index) == {"abc": {}}
    assert index.page_count == 3


def test_a_leaf_cut_whole_leaves_the_tree() -> None:
    """A leaf without pages is in its parent's children no more, nor in the list of nodes."""
    index = make_index("abc", "abd")
    leaf = node_at(index, "abd")
    assert list(index.cut_tail(leaf, 1)) == [3]
    assert shape(index) == {"ab": {"c": {}}}
    assert leaf.number not in index.nodes
    assert index.page_count == 3
    assert walk(index, "abd").depth == 2


def test_detaching_takes_all_that_is_below() -> None:
    """A node leaves with its descendants, parents first, and their links stay."""
    index = make_index("ab", "abcd", "abcde", "abcf", "g")
    top = node_at(index, "abcf").parent
    assert top is not None
    taken = index.detach(top)
    edges = [letters_of(node.edge, index.width) for node in taken]
    assert edges[0] == "abc"
    assert sorted(edges[1:]) == ["de", "f"]
    assert all(node.detached for node in taken)
    assert top.parent is None
    assert all(node.parent is top for node in taken[1:])
    assert shape(index) == {"g": {}}
    assert index.page_count == 1
    assert [node.edge for node in index.nodes.values()] == [paged("g")]


def test_trimming_the_top_of_a_detached_tree_needs_no_parent() -> None:
    """A node without a parent can lose all its pages."""
    index = make_index("abc")
    leaf = node_at(index, "abc")
    index.detach(leaf)
    assert list(trim(leaf, 0, index.width)) == [0, 1, 2]
    assert not leaf.edge


def test_every_place_of_a_path_can_be_found() -> None:
    """The ancestor at each depth is in the node that holds that depth's page."""
    index = make_index("abcdef", "abxx", "abcdyy")
    end = walk(index, "abcdef")
    for depth in range(1, 7):
        at = ancestor(end, depth)
        assert at.depth == depth
        assert at == walk(index, "abcdef"[:depth])
    assert ancestor(end, 0) == Position(index.root, 0)


def test_a_path_reads_from_the_beginning() -> None:
    """Slots and tokens of a path come from all nodes above, the last one in part."""
    index = make_index("abcd", "abef", "abegg")
    at = walk(index, "abeg")
    assert list(path_slots(at)) == [0, 1, 4, 6]
    assert path_tokens(at, index.width) == paged("abeg")


def test_pitfall_empty_slot_list_on_a_cached_start() -> None:
    """A path whose beginning was cached by another sequence has the slots of that, too."""
    index = make_index("abcd")
    at = plant(index, "abxy")
    assert list(path_slots(at)) == [0, 1, 4, 5]


def test_the_root_is_an_empty_path() -> None:
    """At the root there are no slots and no tokens."""
    index = make_index("ab")
    assert list(path_slots(Position(index.root, 0))) == []
    assert path_tokens(Position(index.root, 0), index.width) == b""


def test_depth_is_not_bounded_by_the_interpreters_stack() -> None:
    """A path of more nodes than Python nests calls is walked, listed and read."""
    letters = "".join(chr(0x4000 + k) for k in range(1500))
    index = make_index(letters)
    node = node_at(index, letters)
    for _ in range(len(letters) - 1):
        index.split(node, 1)
    at = walk(index, letters)
    assert at == Position(node, 1)
    assert list(path_slots(at)) == list(range(1500))
    assert len(index.detach(ancestor(at, 1).node)) == 1500
