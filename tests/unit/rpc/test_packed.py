"""Packed numbers, and answers with many slots, as protobuf writes them."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.requests import Grant, Match
from kvstore.core.runs import Run
from kvstore.rpc.convert import MANY, acquire_response, match_response
from kvstore.rpc.packed import packed_field
from kvstore.v1 import types_pb2

EDGES = [0, 1, 127, 128, 16_383, 16_384, (1 << 32) - 1]


@given(st.lists(st.integers(0, (1 << 32) - 1) | st.sampled_from(EDGES), min_size=1))
def test_indexes_are_packed_as_protobuf_does(values: list[int]) -> None:
    """Whatever the numbers' lengths."""
    message = types_pb2.PageRun(slot_indexes=values)
    field = types_pb2.PageRun.SLOT_INDEXES_FIELD_NUMBER
    assert packed_field(field, array("I", values)) == message.SerializeToString()


@given(st.lists(st.integers(0, (1 << 64) - 1) | st.sampled_from(EDGES), min_size=1))
def test_generations_are_packed_as_protobuf_does(values: list[int]) -> None:
    """Of 64 bits too."""
    message = types_pb2.PageRun(generations=values)
    field = types_pb2.PageRun.GENERATIONS_FIELD_NUMBER
    assert packed_field(field, array("Q", values)) == message.SerializeToString()


@pytest.mark.parametrize("count", [0, 1, MANY - 1, MANY, 6_249])
@pytest.mark.parametrize("kind", [tuple, list, lambda values: array("Q", values)])
def test_a_run_is_the_same_message_however_long(count: int, kind: type) -> None:
    """And however its generations come."""
    indexes = list(range(100, 100 + count))
    run = Run(7, 1, array("I", indexes), kind(each % 300 for each in indexes))
    expected = types_pb2.PageRun(
        extent_id=7,
        tier=types_pb2.TIER_1,
        slot_indexes=indexes,
        generations=[each % 300 for each in indexes],
    )
    assert list(match_response(Match(0, (run, run))).match.runs) == [expected, expected]
    grant = acquire_response(Match(0, ()), Grant(1, 0, (run,))).grant
    assert list(grant.runs) == [expected]
