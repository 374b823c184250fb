"""Counts in words."""

import pytest

from kvstore_ctl.terminal_text import counted, removed


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


def test_removed_pages_are_counted_apart_from_those_in_use() -> None:
    """Both counts have a noun of the right number."""
    assert removed(1, 0) == "removed 1 page, and 0 pages in use until the last release"
    assert removed(0, 1) == "removed 0 pages, and 1 page in use until the last release"
