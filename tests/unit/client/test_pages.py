"""The places of pages."""

from kvstore.v1 import types_pb2
from kvstore_client.pages import PageRef, Pages, SlotRun


def test_runs_become_pages_in_prefix_order() -> None:
    """The runs of several extents become pages in their order."""
    runs = [
        types_pb2.PageRun(extent_id=2, slot_indexes=[7, 3]),
        types_pb2.PageRun(extent_id=1, slot_indexes=[0]),
    ]
    assert Pages(runs) == [PageRef(2, 7), PageRef(2, 3), PageRef(1, 0)]
    assert Pages([]) == []


def test_pages_are_a_sequence_like_any_other() -> None:
    """Pages have a length, items and slices like any sequence."""
    runs = [
        types_pb2.PageRun(extent_id=2, slot_indexes=[7, 3]),
        types_pb2.PageRun(extent_id=9),
        types_pb2.PageRun(extent_id=1, slot_indexes=[0]),
    ]
    expected = [PageRef(2, 7), PageRef(2, 3), PageRef(1, 0)]
    assert len(Pages(runs)) == 3
    assert Pages(runs).runs == [SlotRun(2, [7, 3]), SlotRun(1, [0])]
    assert Pages(runs)[-1] == expected[-1]
    assert isinstance(Pages(runs)[0], PageRef)
    assert Pages(runs)[1:] == expected[1:]
    assert list(Pages(runs)) == expected
    assert repr(Pages(runs)) == repr(expected)


def test_a_range_is_the_pages_that_it_stands_for() -> None:
    """A range is the neighbouring slots from its first one, and stays a range."""
    runs = [
        types_pb2.PageRun(extent_id=2, slot_indexes=[7], slot_count=3),
        types_pb2.PageRun(extent_id=1, slot_indexes=[0]),
    ]
    expected = [PageRef(2, 7), PageRef(2, 8), PageRef(2, 9), PageRef(1, 0)]
    assert Pages(runs) == expected
    assert len(Pages(runs)) == 4
    assert Pages(runs).runs == [SlotRun(2, range(7, 10)), SlotRun(1, [0])]


def test_runs_name_each_slots_generation() -> None:
    """A run has a generation for each slot, one for a whole range, or none."""
    runs = [
        types_pb2.PageRun(extent_id=2, slot_indexes=[7, 3], generations=[5, 6]),
        types_pb2.PageRun(extent_id=1, slot_indexes=[4], slot_count=3, generations=[9]),
        types_pb2.PageRun(extent_id=1, slot_indexes=[0]),
    ]
    assert [run.generations for run in Pages(runs).dated_runs] == [(5, 6), (9, 9, 9), ()]


def test_pages_are_equal_to_the_same_pages() -> None:
    """Pages equal any sequence of the same pages in the same order."""
    runs = [types_pb2.PageRun(extent_id=2, slot_indexes=[7, 3])]
    same, turned = [PageRef(2, 7), PageRef(2, 3)], [PageRef(2, 3), PageRef(2, 7)]
    assert Pages(runs) == same == Pages(runs)
    assert Pages(runs) == Pages(runs)
    assert Pages(runs) != turned
    assert Pages(runs) != same[:1]
    assert Pages(runs) != 7
