"""Packed numbers, and answers with many slots, as protobuf writes them."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.values.requests import Grant, Inserted, Match, Source
from kvstore.core.values.runs import Run
from kvstore.rpc.wire.answer import serialized
from kvstore.rpc.wire.convert import (
    acquire_response,
    insert_response,
    match_response,
    reserve_response,
)
from kvstore.rpc.wire.packed import MANY, packed, packed_field
from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore.v1 import types_pb2

EDGES = [0, 1, 127, 128, 16_383, 16_384, (1 << 32) - 1]


@given(st.lists(st.integers(0, (1 << 32) - 1) | st.sampled_from(EDGES), min_size=1))
def test_indexes_are_packed_as_protobuf_does(values: list[int]) -> None:
    """Slot indexes of any length are packed as protobuf packs them."""
    message = types_pb2.PageRun(slot_indexes=values)
    field = types_pb2.PageRun.SLOT_INDEXES_FIELD_NUMBER
    assert packed_field(field, array("I", values)) == message.SerializeToString()


@given(st.lists(st.integers(0, (1 << 64) - 1) | st.sampled_from(EDGES), min_size=1))
def test_generations_are_packed_as_protobuf_does(values: list[int]) -> None:
    """Generations of up to 64 bits are packed as protobuf packs them."""
    message = types_pb2.PageRun(generations=values)
    field = types_pb2.PageRun.GENERATIONS_FIELD_NUMBER
    assert packed_field(field, array("Q", values)) == message.SerializeToString()


@pytest.mark.parametrize("first", [0, 1, 100, 127, 128, 16_300, 65_000])
def test_numbers_in_order_are_packed_as_protobuf_does(first: int) -> None:
    """Consecutive numbers are packed as protobuf packs them, also where they get longer."""
    field = types_pb2.PageRun.SLOT_INDEXES_FIELD_NUMBER
    for count in (1, 2, 200, 1_000):
        values = range(first, first + count)
        message = types_pb2.PageRun(slot_indexes=values)
        assert packed_field(field, array("I", values)) == message.SerializeToString()
        assert packed_field(field, values) == message.SerializeToString()


@pytest.mark.parametrize("value", EDGES)
def test_numbers_all_alike_are_packed_as_protobuf_does(value: int) -> None:
    """Equal numbers are packed as protobuf packs them."""
    message = types_pb2.PageRun(generations=[value] * 100)
    field = types_pb2.PageRun.GENERATIONS_FIELD_NUMBER
    assert packed_field(field, array("Q", [value] * 100)) == message.SerializeToString()


def test_nothing_is_packed_as_nothing() -> None:
    """An empty array is packed as no bytes."""
    assert packed(array("I")) == b""


@pytest.mark.parametrize("count", [1, MANY - 1, MANY, 6_249])
def test_a_run_is_the_same_message_however_long(count: int) -> None:
    """A run is the same message in all four kinds of answers, at any length."""
    indexes = list(range(100, 100 + count))
    generations = [each % 300 for each in indexes]
    run = Run(7, 1, array("I", indexes), array("Q", generations))
    expected = types_pb2.PageRun(
        extent_id=7, tier=types_pb2.TIER_1, slot_indexes=indexes, generations=generations
    )
    matched = pb.MatchPrefixResponse.FromString(serialized(match_response(Match(0, (run, run)))))
    assert list(matched.match.runs) == [expected, expected]
    grant = Grant(1, 0, (run,))
    acquired = pb.AcquirePrefixResponse.FromString(
        serialized(acquire_response(Match(0, (run,)), grant))
    )
    assert list(acquired.match.runs) == list(acquired.grant.runs) == [expected]
    reserved = pb.ReservePagesResponse.FromString(serialized(reserve_response([grant, grant])))
    assert [list(each.runs) for each in reserved.grants] == [[expected], [expected]]
    inserted = pb.InsertPrefixResponse.FromString(
        serialized(insert_response(Inserted((run, run), 1)))
    )
    assert list(inserted.runs) == [expected, expected]


@pytest.mark.parametrize("count", [1, 2, 6_249])
@pytest.mark.parametrize("lives", [1, 300])
def test_slots_that_follow_each_other_are_a_range_to_whom_understands_it(
    count: int, lives: int
) -> None:
    """A client that knows ranges gets neighbouring slots as their first slot and a count.

    Equal generations are then sent once. Other clients get every slot by its number. So does every
    client for slots in another order.
    """
    generations = [5 + each % lives for each in range(count)]
    run = Run(7, 1, range(70_000, 70_000 + count), array("Q", generations))
    named = {"extent_id": 7, "tier": types_pb2.TIER_1}
    apart = types_pb2.PageRun(**named, slot_indexes=run.indexes, generations=generations)
    together = types_pb2.PageRun(
        **named,
        slot_indexes=[70_000],
        generations=generations if lives > 1 and count > 1 else [5],
        slot_count=count if count > 1 else 0,
    )
    turned = run._replace(indexes=array("I", reversed(run.indexes)))
    grant, source = Grant(1, 0, (run,)), Source(3, run, 9)
    for ranges, expected in ((False, apart), (True, together)):
        match = Match(0, (run, turned), source)
        matched = pb.MatchPrefixResponse.FromString(
            serialized(match_response(match, ranges=ranges))
        ).match
        assert matched.runs[0] == matched.source.page == expected
        assert list(matched.runs[1].slot_indexes) == list(turned.indexes)
        acquired = pb.AcquirePrefixResponse.FromString(
            serialized(acquire_response(match, grant, ranges=ranges))
        )
        assert acquired.match == matched
        reserved = pb.ReservePagesResponse.FromString(
            serialized(reserve_response([grant], ranges=ranges))
        )
        inserted = pb.InsertPrefixResponse.FromString(
            serialized(insert_response(Inserted((run,), 1), ranges=ranges))
        )
        assert [*acquired.grant.runs, *reserved.grants[0].runs, *inserted.runs] == [expected] * 3
