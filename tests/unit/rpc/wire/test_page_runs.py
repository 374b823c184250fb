"""Runs of slots in answers: packed, as ranges, and as the repeated fields of older clients."""

from array import array
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.values.runs import Run
from kvstore.rpc.wire import convert
from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore.v1 import types_pb2
from kvstore_client.values.page_runs import DatedRun, Pages

OLDEST = pb.Caller()
RANGES = pb.Caller(slot_ranges=True)
PACKED = pb.Caller(packed_slots=True)
NEWEST = pb.Caller(slot_ranges=True, packed_slots=True)
FORMS = (OLDEST, RANGES, PACKED, NEWEST)
INDEXES = st.integers(0, (1 << 32) - 1)
GENERATIONS = st.integers(0, (1 << 64) - 1)
ALIKE = st.builds(lambda each, count: [each] * count, GENERATIONS, st.integers(2, 200))
NAMED = {"extent_id": 7, "tier": types_pb2.TIER_1}


def written(run: Run, caller: pb.Caller) -> types_pb2.PageRun:
    """Returns a run as its caller gets it."""
    message = types_pb2.PageRun()
    convert.fill_run(message, run, caller)
    return types_pb2.PageRun.FromString(message.SerializeToString())


@pytest.mark.parametrize("caller", [OLDEST, RANGES], ids=["oldest", "ranges"])
def test_an_older_client_gets_repeated_fields(caller: pb.Caller) -> None:
    """An older client that gets ranges also gets other slots one by one."""
    run = Run(7, 1, array("I", [3, 1 << 20]), array("Q", [5, 1 << 40]))
    expected = types_pb2.PageRun(**NAMED, slot_indexes=[3, 1 << 20], generations=[5, 1 << 40])
    assert written(run, caller) == expected


@pytest.mark.parametrize("caller", [PACKED, NEWEST], ids=["packed", "newest"])
def test_packed_numbers_are_little_endian_and_of_fixed_width(caller: pb.Caller) -> None:
    """An index has four bytes and a generation eight, and the repeated fields stay empty."""
    run = Run(7, 1, array("I", [3, 1 << 20]), array("Q", [5, 1 << 40]))
    expected = types_pb2.PageRun(
        **NAMED,
        packed_slot_indexes=bytes([3, 0, 0, 0, 0, 0, 16, 0]),
        packed_generations=bytes([5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]),
    )
    assert written(run, caller) == expected


@pytest.mark.parametrize("count", [1, 2, 6_249])
@pytest.mark.parametrize("lives", [1, 300])
def test_consecutive_slots_are_a_range_for_clients_that_understand_it(
    count: int, lives: int
) -> None:
    """A range is its first index and its number of slots; equal generations are named once."""
    generations = [5 + each % lives for each in range(count)]
    indexes = range(70_000, 70_000 + count)
    run = Run(7, 1, indexes, array("Q", generations))
    first, named = [70_000], generations if lives > 1 else [5]
    slot_count = count if count > 1 else 0
    assert written(run, OLDEST) == types_pb2.PageRun(
        **NAMED, slot_indexes=indexes, generations=generations
    )
    assert written(run, RANGES) == types_pb2.PageRun(
        **NAMED, slot_indexes=first, generations=named, slot_count=slot_count
    )
    assert written(run, PACKED) == types_pb2.PageRun(
        **NAMED,
        packed_slot_indexes=pack(f"<{count}I", *indexes),
        packed_generations=pack(f"<{count}Q", *generations),
    )
    assert written(run, NEWEST) == types_pb2.PageRun(
        **NAMED,
        packed_slot_indexes=pack("<I", *first),
        packed_generations=pack(f"<{len(named)}Q", *named),
        slot_count=slot_count,
    )


@given(st.lists(st.tuples(INDEXES, GENERATIONS), min_size=1))
def test_every_form_names_the_same_slots(slots: list[tuple[int, int]]) -> None:
    """A client reads the same slots and generations, whatever it said that it understands."""
    indexes, generations = zip(*slots, strict=True)
    run = Run(7, 1, array("I", indexes), array("Q", generations))
    for caller in FORMS:
        read = Pages([written(run, caller)])
        assert read.dated_runs == [DatedRun(7, list(indexes), generations)]
        assert len(read) == len(indexes)


@given(st.integers(0, 1 << 31), st.lists(GENERATIONS, min_size=2) | ALIKE)
def test_every_form_names_the_same_consecutive_slots(first: int, generations: list[int]) -> None:
    """A range is the slots that it stands for, with one generation or one each."""
    indexes = range(first, first + len(generations))
    run = Run(7, 1, indexes, array("Q", generations))
    for caller in FORMS:
        [read] = Pages([written(run, caller)]).dated_runs
        assert isinstance(read.slots, range) == caller.slot_ranges
        assert (read.extent_id, list(read.slots)) == (7, list(indexes))
        assert read.generations == tuple(generations)
