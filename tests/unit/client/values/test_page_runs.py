"""The places of pages."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

import pytest

from kvstore.v1 import types_pb2
from kvstore_client.values.page_runs import PageRef, Pages, SlotRun
from wire.packed_runs import packed, unchanged

Answered: TypeAlias = Callable[[Iterable[types_pb2.PageRun]], Pages]


@pytest.fixture(params=[unchanged, packed], ids=["repeated", "packed"])
def answered(request: pytest.FixtureRequest) -> Answered:
    """Provides the pages of runs, in the form of older and of newer stores."""
    return lambda runs: Pages(map(request.param, runs))


def test_runs_become_pages_in_prefix_order(answered: Answered) -> None:
    """The runs of several extents become pages in their order."""
    runs = [
        types_pb2.PageRun(extent_id=2, slot_indexes=[7, 3]),
        types_pb2.PageRun(extent_id=1, slot_indexes=[0]),
    ]
    assert answered(runs) == [PageRef(2, 7), PageRef(2, 3), PageRef(1, 0)]
    assert answered([]) == []


def test_pages_are_a_sequence_like_any_other(answered: Answered) -> None:
    """Pages have a length, items and slices like any sequence."""
    runs = [
        types_pb2.PageRun(extent_id=2, slot_indexes=[7, 3]),
        types_pb2.PageRun(extent_id=9),
        types_pb2.PageRun(extent_id=1, slot_indexes=[0]),
    ]
    expected = [PageRef(2, 7), PageRef(2, 3), PageRef(1, 0)]
    assert len(answered(runs)) == 3
    assert answered(runs).runs == [SlotRun(2, [7, 3]), SlotRun(1, [0])]
    assert answered(runs)[-1] == expected[-1]
    assert isinstance(answered(runs)[0], PageRef)
    assert answered(runs)[1:] == expected[1:]
    assert list(answered(runs)) == expected
    assert repr(answered(runs)) == repr(expected)


def test_a_range_is_the_pages_that_it_stands_for(answered: Answered) -> None:
    """A range is the neighbouring slots from its first one, and stays a range."""
    runs = [
        types_pb2.PageRun(extent_id=2, slot_indexes=[7], slot_count=3),
        types_pb2.PageRun(extent_id=1, slot_indexes=[0]),
    ]
    expected = [PageRef(2, 7), PageRef(2, 8), PageRef(2, 9), PageRef(1, 0)]
    assert answered(runs) == expected
    assert len(answered(runs)) == 4
    assert answered(runs).runs == [SlotRun(2, range(7, 10)), SlotRun(1, [0])]
    assert list(answered(runs).ends()) == [(2, 10), (1, 0)]


def test_runs_name_each_slots_generation(answered: Answered) -> None:
    """A run has a generation for each slot, one for a whole range, or none."""
    runs = [
        types_pb2.PageRun(extent_id=2, slot_indexes=[7, 3], generations=[5, 6]),
        types_pb2.PageRun(extent_id=1, slot_indexes=[4], slot_count=3, generations=[9]),
        types_pb2.PageRun(extent_id=1, slot_indexes=[0]),
    ]
    assert [run.generations for run in answered(runs).dated_runs] == [(5, 6), (9, 9, 9), ()]


def test_pages_are_equal_to_the_same_pages(answered: Answered) -> None:
    """Pages equal any sequence of the same pages in the same order."""
    runs = [types_pb2.PageRun(extent_id=2, slot_indexes=[7, 3])]
    same, turned = [PageRef(2, 7), PageRef(2, 3)], [PageRef(2, 3), PageRef(2, 7)]
    assert answered(runs) == same == answered(runs)
    assert answered(runs) == answered(runs)
    assert answered(runs) != turned
    assert answered(runs) != same[:1]
    assert answered(runs) != 7


@pytest.mark.parametrize(
    ("indexes", "generations", "cut_off"),
    [
        (b"\7\0\0\0", b"\5" + bytes(7), False),
        (b"\7\0\0\0", b"", False),
        (b"\7\0\0\0\1\2\3", b"\5" + bytes(7), True),
        (b"\7\0\0\0", b"\5" + bytes(14), True),
    ],
)
def test_pages_tell_that_packed_numbers_are_cut_off(
    indexes: bytes, generations: bytes, *, cut_off: bool
) -> None:
    """Whole numbers before the end are pages all the same."""
    run = types_pb2.PageRun(
        extent_id=2, packed_slot_indexes=indexes, packed_generations=generations
    )
    pages = Pages([types_pb2.PageRun(extent_id=1, slot_indexes=[0]), run])
    assert pages.cut_off == cut_off
    assert pages == [PageRef(1, 0), PageRef(2, 7)]


def test_a_run_with_less_than_one_packed_number_has_no_page() -> None:
    """A number of slots makes it no range, and it counts as cut off."""
    pages = Pages([types_pb2.PageRun(extent_id=3, packed_slot_indexes=b"\7\0\0", slot_count=2)])
    assert pages == []
    assert pages.cut_off


def test_pages_have_the_tiers_of_their_runs(answered: Answered) -> None:
    """A run without a tier is in the nearest one, as older stores say it."""
    runs = [
        types_pb2.PageRun(extent_id=2, slot_indexes=[7], slot_count=3, tier=types_pb2.TIER_2),
        types_pb2.PageRun(extent_id=1, slot_indexes=[0, 4]),
    ]
    assert answered(runs).tiers == [2, 2, 2, 1, 1]
