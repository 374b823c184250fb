"""The children of a node, in the order of their bytes."""

from array import array

import pytest

from core.core_builders import make_namespace
from kvstore.core.index.children import NO_CHILDREN, Children
from kvstore.core.index.node import Node


def named(namespace: object, number: int) -> Node:
    """Returns a node that nothing but its number tells apart."""
    return Node(namespace, number, b"", array("Q"), None, 0)  # type: ignore[arg-type]


def words(*texts: str) -> Children:
    """Returns children whose first pages are ``texts``, a letter a token, numbered from 1."""
    namespace, children = make_namespace(), Children()
    for number, text in enumerate(texts, start=1):
        children.add(encoded(text), named(namespace, number))
    return children


def encoded(text: str) -> bytes:
    """Returns one token a letter."""
    return b"".join(ord(letter).to_bytes(4, "little") for letter in text)


def found(children: Children, text: str) -> tuple[int, int] | None:
    """Returns the number of the nearest child and for how many tokens it agrees."""
    nearest = children.nearest(encoded(text))
    return None if nearest is None else (nearest[0].number, nearest[1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abcd", (1, 4)),
        ("abc", (1, 3)),
        ("abzz", (2, 2)),
        ("acaa", (3, 1)),
        ("dogs", (4, 3)),
        ("doggy", (4, 3)),
        ("x", None),
        ("", None),
    ],
)
def test_the_nearest_agrees_longest(text: str, expected: tuple[int, int] | None) -> None:
    """Finds the sibling with the longest common beginning, or none."""
    assert found(words("abcd", "abxy", "aqqq", "dog"), text) == expected


def test_the_nearest_is_found_among_many_without_a_look_at_each() -> None:
    """Whatever the number of siblings, only neighbours in the order are compared."""

    class Counted(bytes):
        looks = 0

        def __lt__(self, other: bytes) -> bool:
            Counted.looks += 1
            return bytes.__lt__(self, other)

    namespace, children = make_namespace(), Children()
    for number in range(4096):
        page = number.to_bytes(4, "big") + bytes(12)
        children.add(Counted(page), named(namespace, number))
    Counted.looks = 0
    nearest = children.nearest((1234).to_bytes(4, "big") + b"\1" * 12)
    assert nearest is not None
    assert (nearest[0].number, nearest[1]) == (1234, 1)
    assert Counted.looks <= 14


def test_children_that_begin_with_tokens_come_in_order() -> None:
    """All whose first page begins with the tokens are given, and no other."""
    children = words("abx", "b", "abcd", "aa")
    assert [each.number for each in children.begun_by(encoded("ab"))] == [3, 1]
    assert [each.number for each in children.begun_by(b"")] == [4, 3, 1, 2]
    assert children.has_begun_by(encoded("abc"))
    assert not children.has_begun_by(encoded("abd"))
    assert not children.has_begun_by(encoded("c"))


def test_a_partial_page_that_a_page_begins_with_is_found() -> None:
    """It is the only one before the page in the order that the page can begin with."""
    children = words("ab", "ad", "b")
    beginning = children.beginning(encoded("abcd"))
    assert beginning is not None
    assert beginning.number == 1
    assert children.beginning(encoded("acdd")) is None
    assert children.beginning(encoded("a")) is None
    assert Children().beginning(encoded("a")) is None
    assert Children().nearest(encoded("a")) is None


def test_a_partial_page_is_found_beside_whole_ones_whichever_came_first() -> None:
    """Also where all before were of one length, and of another than those that went."""
    for texts in (("wxyz", "ab"), ("ab", "wxyz"), ("a", "wxyz", "ab")):
        children = words(*texts)
        if "a" in texts:
            children.drop(encoded("a"))
        for page in ("abcd", "abc"):
            beginning = children.beginning(encoded(page))
            assert beginning is not None
            assert beginning is children[encoded("ab")]
        assert children.beginning(encoded("wxya")) is None
    children = words("wxyz")
    children.drop(encoded("wxyz"))
    children.add(encoded("ab"), named(make_namespace(), 1))
    assert children.beginning(encoded("abcd")) is children[encoded("ab")]


def test_what_is_dropped_is_found_no_more() -> None:
    """A dropped child leaves the order too, and one added under its key takes its place."""
    children = words("ab", "cd")
    children.drop(encoded("ab"))
    assert found(children, "ab") is None
    children.drop(encoded("cd"))
    assert found(children, "cd") is None
    children.add(encoded("cd"), named(make_namespace(), 7))
    children.add(encoded("cd"), named(make_namespace(), 8))
    assert [each.number for each in children.begun_by(b"")] == [8]


def test_nothing_is_added_to_what_all_leaves_share() -> None:
    """A node that never had a child gets children of its own, and no other a child of its."""
    with pytest.raises(TypeError):
        NO_CHILDREN.add(encoded("ab"), named(make_namespace(), 1))
    one, other = (named(make_namespace(), number) for number in (1, 2))
    one.add_child(encoded("ab"), other)
    assert one.children[encoded("ab")] is other
    assert not other.children
    assert not NO_CHILDREN
    assert NO_CHILDREN.nearest(encoded("ab")) is None
