"""The index of chained digests by itself: it finds pages, and believes no digest blindly."""

from array import array
from functools import partial

import pytest

from core.core_builders import FILLER, letters_of, make_namespace, paged
from kvstore.core.index.hash_index import DIGEST_BYTES, HashIndex, blake2b_128
from kvstore.core.index.node import Position

ALL_ALIKE = partial(HashIndex, digest=lambda _: b"the same")


def make_index(*sequences: str, kind: object = HashIndex) -> HashIndex:
    """Returns an index of sequences, whose slots are numbered in order of insertion."""
    index = kind(make_namespace(), 2)  # type: ignore[operator]
    assert isinstance(index, HashIndex)
    for letters in sequences:
        plant(index, letters)
    return index


def plant(index: HashIndex, letters: str) -> Position:
    """Adds what is not there of a sequence."""
    at = walk(index, letters)
    slots = array("Q", range(index.page_count, index.page_count + len(letters) - at.depth))
    return index.extend(at, paged(letters[at.depth :]), slots) if slots else at


def walk(index: HashIndex, letters: str) -> Position:
    """Descends from the root along a sequence."""
    return index.descend(Position(index.root, 0), paged(letters), len(letters))


def test_a_digest_has_128_bits() -> None:
    """Two pages' digests differ."""
    assert len(blake2b_128(b"a")) == DIGEST_BYTES == 16
    assert blake2b_128(b"a") != blake2b_128(b"b")


@pytest.mark.parametrize("kind", [HashIndex, ALL_ALIKE], ids=["digests", "all-collide"])
@pytest.mark.parametrize(
    ("letters", "depth"),
    [("", 0), ("x", 0), ("a", 1), ("abx", 2), ("abcd", 4), ("abcdx", 4), ("abce", 4), ("ga", 1)],
)
def test_a_walk_ends_where_the_sequence_parts(kind: object, letters: str, depth: int) -> None:
    """However the digests fall: where all are alike, pages are found among their siblings."""
    index = make_index("abcd", "abcef", "g", kind=kind)
    assert walk(index, letters).depth == depth


def test_a_walk_goes_on_from_where_another_ended() -> None:
    """The digest of a page stands with it."""
    index = make_index("abcd", "abef")
    at = walk(index, "ab")
    assert index.descend(at, paged("ef"), 2).depth == 4
    assert index.descend(at, paged("ef"), 1).depth == 3
    assert index.descend(at, paged("xx"), 2) == at


def test_the_same_page_elsewhere_is_another() -> None:
    """A page's digest is that of all tokens through it."""
    index = make_index("ab", "bb")
    assert walk(index, "ab").node is not walk(index, "bb").node
    assert walk(index, "b").node.parent is index.root


def test_each_page_is_a_node() -> None:
    """A run becomes a chain, whose nodes have one slot each; a partial page is one too."""
    index = make_index("abc")
    assert [letters_of(each.edge, index.width) for each in index.nodes.values()] == list("abc")
    assert [list(each.slots) for each in index.nodes.values()] == [[0], [1], [2]]
    end = index.extend(walk(index, "abc"), FILLER, array("Q", [3]))
    assert (end.depth, end.node.edge, index.page_count) == (4, FILLER, 4)


@pytest.mark.parametrize("kind", [HashIndex, ALL_ALIKE], ids=["digests", "all-collide"])
def test_what_went_is_found_no_more(kind: object) -> None:
    """Whichever of two pages with one digest goes first, the other stays."""
    for first, second in (("a", "b"), ("b", "a")):
        index = make_index("a", "b", kind=kind)
        for gone, left in ((first, {second}), (second, set())):
            index.cut_tail(walk(index, gone).node, 1)
            found = {letters for letters in "ab" if walk(index, letters).depth}
            assert found == left
        assert not index.nodes


@pytest.mark.parametrize("kind", [HashIndex, ALL_ALIKE], ids=["digests", "all-collide"])
@pytest.mark.parametrize("bad", ["ab", "abc", "x"])
def test_a_walk_ends_above_a_condemned_page(kind: object, bad: str) -> None:
    """Whichever page of a digest it is; the same tokens beside it are found."""
    index = make_index("abcd", "x", kind=kind)
    index.condemn(walk(index, bad).node)
    assert walk(index, bad + "d").depth == len(bad) - 1
    plant(index, bad)
    assert walk(index, bad + "d").depth == len(bad)
