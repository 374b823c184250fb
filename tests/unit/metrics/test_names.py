"""Names of others as labels: few, short, printable, and each the same again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.metrics.names import (
    MAX_LENGTH,
    OTHER,
    UNNAMED,
    Names,
    PassingNames,
    TenantNames,
    clean,
)


@given(st.text())
def test_a_name_is_short_and_printable(text: str) -> None:
    """Whatever it is, and never empty."""
    name = clean(text)
    assert 0 < len(name) <= MAX_LENGTH
    assert name.isprintable()
    assert clean(name) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("llama 3", "llama 3"),
        ("", UNNAMED),
        ("  ", UNNAMED),
        ("a\nb\x00\u202e", "a?b??"),
        ('"} 1\nup 0', '"} 1?up 0'),
    ],
)
def test_what_would_break_a_line_is_shown_as_a_question_mark(text: str, name: str) -> None:
    """Control characters, line ends and those that turn the writing's direction."""
    assert clean(text) == name


def test_the_first_keep_their_names_and_the_rest_share_one() -> None:
    """Whatever came in between."""
    names = Names(2)
    assert [names.of(each) for each in "abcabd"] == ["a", "b", OTHER, "a", "b", OTHER]


def test_no_tenant_takes_all_names_of_namespaces() -> None:
    """Each has some of its own; all together are bounded too."""
    names = TenantNames()
    shown = {names.namespace("greedy", f"{number}") for number in range(1000)}
    assert len(shown) == 17
    assert ("greedy", OTHER) in shown
    assert names.namespace("modest", "chat") == ("modest", "chat")
    many = {names.namespace(f"{t}", f"{n}") for t in range(100) for n in range(20)}
    assert len(many) <= 128 + 32
    assert (OTHER, OTHER) in many


def test_owners_that_went_make_room() -> None:
    """Those that are still there keep their names."""
    names = PassingNames(2)
    names.show([("t", "a"), ("t", "b"), ("t", "c")])
    assert [names.of("t", each) for each in "abc"] == [("t", "a"), ("t", "b"), ("t", OTHER)]
    names.show([("t", "c"), ("t", "b"), ("t", "d")])
    assert [names.of("t", each) for each in "bcd"] == [("t", "b"), ("t", "c"), ("t", OTHER)]
