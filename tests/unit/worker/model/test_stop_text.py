"""Stop strings are found across pieces and cut out, and hold text back no longer than needed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_worker.model.text import StopText


def through(stops: list[str], *pieces: str) -> tuple[list[str], bool]:
    """Returns the output of each piece, up to the stop or the end."""
    stop_text = StopText(stops)
    found = []
    for piece in pieces:
        found.append(stop_text.add(piece))
        if stop_text.stopped:
            break
    return [*found, stop_text.end()], stop_text.stopped


def test_what_may_become_a_stop_is_held_back() -> None:
    """Text is held back while it may become a stop, and is given at the end."""
    assert through(["END"], "a", "E", "N", "b") == (["a", "", "", "ENb", ""], False)
    assert through(["END"], "a", "EN") == (["a", "", "EN"], False)
    assert through(["END"], "aEEN", "D more") == (["aE", "", ""], True)
    assert through([], "abc") == (["abc", ""], False)


def test_the_one_that_ends_first_is_the_stop() -> None:
    """The stop that ends first counts, in any pieces, and the longest of those that tie."""
    for pieces in (["xabcd"], list("xabcd")):
        assert "".join(through(["abcd", "bc"], *pieces)[0]) == "xa"
        assert "".join(through(["bcd", "abcd"], *pieces)[0]) == "x"


def test_a_stop_is_not_empty() -> None:
    """An empty stop is refused, because it would end every text."""
    with pytest.raises(ValueError, match="at least one character"):
        StopText(["a", ""])


LETTERS = st.text("ab", max_size=20)


@given(st.lists(st.text("ab", min_size=1, max_size=6), max_size=4), st.lists(LETTERS, max_size=6))
def test_it_finds_what_a_search_finds(stops: list[str], pieces: list[str]) -> None:
    """The output is the text before the stop that ends first, without any part of it."""
    text = "".join(pieces)
    ends = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    end, length = min(ends, default=(len(text), 0))
    shown, stopped = through(stops, *pieces)
    assert "".join(shown) == text[: end + length]
    assert stopped == bool(ends)
