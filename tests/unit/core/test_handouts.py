"""Which processes may have which extents mapped."""

from kvstore.core.handouts import Handouts


def test_what_was_given_counts_until_it_is_taken_back() -> None:
    """An extent is somebody's until each process that was given it unmapped it or is gone."""
    handouts = Handouts()
    handouts.give(1, 101, [5, 6])
    handouts.give(2, 102, [5])
    assert handouts.pids(5) == [101, 102]
    handouts.take_back(1, [5, 9])
    assert (handouts.pids(5), handouts.of(1)) == ([102], {6})
    handouts.forget(2)
    assert handouts.pids(5) == []


def test_a_process_with_nothing_is_not_there() -> None:
    """The table is no larger than the processes that may have something mapped."""
    handouts = Handouts()
    handouts.give(1, 101, [])
    handouts.give(2, 102, [5])
    assert handouts.process_ids == {2}
    handouts.take_back(2, [5])
    handouts.take_back(3, [5])
    handouts.forget(3)
    assert handouts.process_ids == set()
    assert handouts.of(2) == set()


def test_one_process_under_two_leases_is_named_once() -> None:
    """The same pid under two numbers has the extent twice, and is one process to people."""
    handouts = Handouts()
    handouts.give(1, 101, [5])
    handouts.give(2, 101, [5])
    assert handouts.pids(5) == [101]
    handouts.take_back(1, [5])
    assert handouts.pids(5) == [101]
