"""Slots as runs of one extent each."""

from array import array
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.values.runs import WORTH, Run, extent_of, runs_of
from kvstore.core.values.slots import INDEX_BITS, ORDERED, ExtentSlots, Slots


class CountingExtents(dict[int, ExtentSlots]):
    """Extents that count how often one is looked up."""

    lookups = 0

    def __getitem__(self, key: int) -> ExtentSlots:
        """Count, and look up."""
        self.lookups += 1
        return super().__getitem__(key)


def slots(*pairs: tuple[int, int]) -> Slots:
    """Returns slots of (extent, index)."""
    return array("Q", [extent << INDEX_BITS | index for extent, index in pairs])


@pytest.fixture
def extents() -> CountingExtents:
    """Provides extents 1, 2 and the last possible, whose slots differ in generation."""
    made = CountingExtents()
    for extent_id in (1, 2, (1 << 32) - 1):
        made[extent_id] = ExtentSlots(extent_id, 100)
        for index in range(100):
            made[extent_id].generations[index] = 1000 + index
    made.lookups = 0
    return made


def contents(runs: Iterable[Run]) -> list[tuple[int, list[int], list[int]]]:
    """Returns runs with their sequences as lists."""
    return [(run.extent_id, list(run.indexes), list(run.generations)) for run in runs]


def test_no_slots_are_no_runs(extents: CountingExtents) -> None:
    """An empty path is an empty answer."""
    assert runs_of(array("Q"), extents) == ()


def test_one_extent_is_one_run(extents: CountingExtents) -> None:
    """Slots of one extent are one run in their own order, each with its generation."""
    runs = runs_of(slots((1, 9), (1, 3), (1, 4)), extents)
    assert contents(runs) == [(1, [9, 3, 4], [1009, 1003, 1004])]


def test_a_single_page_is_a_run(extents: CountingExtents) -> None:
    """A run of one page has one index and one generation."""
    assert contents(runs_of(slots((2, 5)), extents)) == [(2, [5], [1005])]


def test_runs_follow_the_path_from_extent_to_extent(extents: CountingExtents) -> None:
    """Each change of extent begins a run, also back to one that was there before."""
    runs = runs_of(slots((1, 0), (1, 1), (2, 7), (1, 2), (1, 3)), extents)
    assert contents(runs) == [
        (1, [0, 1], [1000, 1001]),
        (2, [7], [1007]),
        (1, [2, 3], [1002, 1003]),
    ]


def test_a_run_names_its_tier(extents: CountingExtents) -> None:
    """Each run has its extent's tier."""
    extents[2].tier = 2
    runs = runs_of(slots((1, 0), (2, 0)), extents)
    assert [run.tier for run in runs] == [1, 2]


def test_large_extent_numbers_survive(extents: CountingExtents) -> None:
    """All 32 bits of an extent's number are kept."""
    last = (1 << 32) - 1
    runs = runs_of(slots((last, 99), (1, 0)), extents)
    assert [run.extent_id for run in runs] == [last, 1]


def test_a_path_in_one_extent_looks_it_up_once(extents: CountingExtents) -> None:
    """The number of lookups is that of runs, not of pages."""
    runs_of(slots(*((1, index) for index in range(100))), extents)
    assert extents.lookups == 1


def test_a_slot_knows_its_extent() -> None:
    """The extent's number can be read off a slot."""
    assert [extent_of(slot) for slot in slots((7, 0), ((1 << 32) - 1, 5))] == [7, (1 << 32) - 1]


@pytest.mark.parametrize("first", [0, 3, (1 << 16) - 70])
def test_a_long_run_in_order_has_each_slot_s_generation(first: int) -> None:
    """As they are now: what becomes of a slot later is not in the answer."""
    extent = ExtentSlots(1, 1 << 17)
    places = list(range(first, first + 99))
    for index in places:
        extent.generations[index] = 1000 + index
    expected = [1000 + index for index in places]
    for order in (places, places[::-1], [*places[:50], *places[51:]]):
        runs = runs_of(slots(*((1, index) for index in order)), {1: extent})
        found = [1000 + index for index in order]
        assert contents(runs) == [(1, order, found)]
        follow = order == places and places[-1] < ORDERED
        assert isinstance(runs[0].indexes, range) == follow
    runs = runs_of(slots(*((1, index) for index in places)), {1: extent})
    extent.generations[first] += 1
    assert list(runs[0].generations) == expected


def runs_of_parts(lengths: Iterable[int], slot_count: int = 1 << 17) -> list[Run]:
    """Returns the runs of one extent's slots in parts of such lengths, none behind the other."""
    extent = ExtentSlots(1, slot_count)
    indexes: list[int] = []
    first = slot_count
    for length in lengths:
        first -= length + 1
        indexes += range(first, first + length)
    for index in indexes:
        extent.generations[index] = 7 * index
    runs = runs_of(slots(*((1, index) for index in indexes)), {1: extent})
    assert [index for run in runs for index in run.indexes] == indexes
    assert [each for run in runs for each in run.generations] == [7 * each for each in indexes]
    return list(runs)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=12))
def test_few_long_parts_in_order_are_runs_of_their_own(lengths: list[int]) -> None:
    """As the turns of a conversation are; nothing is lost or turned, whatever their lengths."""
    runs = runs_of_parts(lengths, 1 << 13)
    in_order = all(isinstance(run.indexes, range) for run in runs)
    assert [len(run.indexes) for run in runs] == (lengths if in_order else [sum(lengths)])
    if sum(lengths) >= 2 * WORTH and min(lengths) >= WORTH:
        assert in_order


def test_many_short_parts_are_one_run() -> None:
    """Named one by one, as are those of an extent's end, of which the order is not known."""
    assert [len(run.indexes) for run in runs_of_parts([3] * 200, 1 << 13)] == [600]
    assert [len(run.indexes) for run in runs_of_parts([100, 100])] == [200]
    assert [len(run.indexes) for run in runs_of_parts([1, 1, 1, 300], 1 << 13)] == [1, 1, 1, 300]


def test_parts_of_several_extents_are_told_apart() -> None:
    """Each extent's by themselves, in the path's order."""
    made = {1: ExtentSlots(1, 1000), 2: ExtentSlots(2, 1000)}
    path = [*((1, index) for index in range(500, 700)), *((1, index) for index in range(100))]
    path += [*((2, index) for index in range(300, 400)), (1, 900)]
    runs = runs_of(slots(*path), made)
    assert [(run.extent_id, run.indexes) for run in runs] == [
        (1, range(500, 700)),
        (1, range(100)),
        (2, range(300, 400)),
        (1, range(900, 901)),
    ]
