"""The turns of lanes that wait for threads."""

from kvstore.rpc.fair_queue import Turns


def test_who_finds_nobody_in_line_begins_at_once() -> None:
    """A call begins at once while its lane has fewer threads than are idle, and then waits."""
    turns: Turns[int] = Turns(4)
    assert turns.enter("a", 1) == ("a", 1)
    assert turns.enter("a", 2) == ("a", 2)
    assert turns.enter("a", 3) is None
    assert turns.has_line
    assert turns.enter("b", 4) == ("b", 4)
    # One is idle, which a third lane may have.
    assert turns.enter("b", 5) is None
    assert turns.enter("c", 6) == ("c", 6)


def test_who_ends_is_given_what_waits_longest() -> None:
    """A thread that ends a call takes one from the lane that waited longest."""
    turns: Turns[int] = Turns(2)
    assert turns.enter("a", 1) == ("a", 1)
    assert [turns.enter("a", 2), turns.enter("a", 3)] == [None, None]
    assert turns.enter("b", 4) == ("b", 4)
    assert turns.enter("b", 5) is None
    assert turns.end("a") == ("a", 2)
    assert turns.end("b") == ("b", 5)
    assert turns.end("b") is None
    assert turns.end("a") == ("a", 3)
    assert turns.end("a") is None
    assert not turns.has_line
    assert turns.begin() is None


def test_what_stands_in_line_comes_before_what_enters() -> None:
    """A waiting call comes before a new one, even if it was queued without starting a thread."""
    turns: Turns[int] = Turns(4)
    turns.put("a", 1)
    assert turns.enter("b", 2) == ("a", 1)
    assert turns.begin() == ("b", 2)
    assert turns.end("a") is None
