"""The extents that each process may have mapped."""

from kvstore.core.leases.mappings import Mappings


def test_what_was_given_counts_until_it_is_taken_back() -> None:
    """An extent is somebody's until each process that was given it unmapped it or is gone."""
    mappings = Mappings()
    mappings.give(1, 101, [5, 6])
    mappings.give(2, 102, [5])
    assert mappings.pids(5) == [101, 102]
    assert [mappings.pid_of(each) for each in (1, 2)] == [101, 102]
    mappings.take_back(1, [5, 9])
    assert (mappings.pids(5), mappings.of(1)) == ([102], {6})
    mappings.forget(2)
    assert mappings.pids(5) == []


def test_a_process_with_nothing_is_not_there() -> None:
    """The table is no larger than the processes that may have something mapped."""
    mappings = Mappings()
    mappings.give(1, 101, [])
    mappings.give(2, 102, [5])
    assert mappings.process_ids == {2}
    mappings.take_back(2, [5])
    mappings.take_back(3, [5])
    mappings.forget(3)
    assert mappings.process_ids == set()
    assert mappings.of(2) == set()


def test_one_process_under_two_leases_is_named_once() -> None:
    """The same pid under two numbers has the extent twice, and is one process to people."""
    mappings = Mappings()
    mappings.give(1, 101, [5])
    mappings.give(2, 101, [5])
    assert mappings.pids(5) == [101]
    mappings.take_back(1, [5])
    assert mappings.pids(5) == [101]
