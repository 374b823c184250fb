"""Next tokens and where they stand."""

from core.letter_world import letters
from kvstore.core.index.children import Children
from kvstore.core.index.next_tokens import NextTokens


def test_the_first_next_token_of_an_end_stays() -> None:
    """A later one of the same end is not stored."""
    ends = NextTokens()
    ends.store(2, b"tail", 7)
    ends.store(2, b"tail", 8)
    assert ends.find(2, b"tail") == 7
    assert ends.find(2, b"") is None
    assert ends.find(3, b"tail") is None


def test_a_cut_forgets_what_nothing_continues() -> None:
    """Ends beyond the cut go, those within the page after it too; the one at it stays."""
    ends = NextTokens()
    for depth in (1, 2, 3):
        ends.store(depth, b"", depth)
        ends.store(depth, b"tail", depth)
    ends.cut(2, 3)
    assert sorted(ends) == [(1, b""), (1, b"tail"), (2, b"")]
    ends.cut(1, 2)
    ends.cut(0, 1)
    assert list(ends) == []


def test_with_a_page_go_the_ends_within_it() -> None:
    """Those that no sibling begins with; the end before the page stays."""
    ends, siblings = NextTokens(), Children()
    for tail in ("", "a", "ab", "abc", "x"):
        ends.store(1, letters(tail), 5)
    siblings.add(letters("aq"), None)  # type: ignore[arg-type]  # only its key counts
    ends.forget(1, letters("abcd"), siblings.has_begun_by)
    ends.forget(2, letters("abcd"), siblings.has_begun_by)
    assert sorted(ends) == [(1, b""), (1, letters("a")), (1, letters("x"))]


def test_few_ends_are_found_in_a_long_page() -> None:
    """The same next tokens go, with fewer ends than the page has tokens and with more."""
    page = letters("abcdefgh")
    for others in (0, 20):
        ends = NextTokens()
        for tail in (b"", page[:4], page[:20], letters("ax")):
            ends.store(1, tail, 5)
        for other in range(others):
            ends.store(1, letters("z") * (other + 1), 5)
        ends.forget(1, page, Children().has_begun_by)
        left = {tail for _, tail in ends if not tail.startswith(letters("z"))}
        assert left == {b"", letters("ax")}


def test_a_division_keeps_each_end_once() -> None:
    """Those through the depth are taken out, the others stay."""
    ends = NextTokens()
    for depth in (1, 2, 3):
        ends.store(depth, b"", depth)
    upper = ends.divide(2)
    assert (sorted(upper), sorted(ends)) == ([(1, b""), (2, b"")], [(3, b"")])
