"""Counts in words."""

import pytest

from kvstore_ctl.text import counted, gone


@pytest.mark.parametrize(
    ("count", "nouns", "said"),
    [
        (0, ("page",), "0 pages"),
        (1, ("page",), "1 page"),
        (2, ("page",), "2 pages"),
        (1, ("token is", "tokens are"), "1 token is"),
        (17, ("token is", "tokens are"), "17 tokens are"),
    ],
)
def test_one_of_something_is_no_plural(count: int, nouns: tuple[str, ...], said: str) -> None:
    """A count of one has the singular, and any other count has the plural."""
    assert counted(count, *nouns) == said


def test_removed_pages_are_gone_or_go() -> None:
    """Each of the two counts has its own singular and plural."""
    assert gone(1, 0) == "1 page is gone, 0 go at their last release"
    assert gone(0, 1) == "0 pages are gone, 1 goes at its last release"
