"""The operations of a step, counted before the request is parsed."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.values.limits import Limits
from kvstore.errors import KVStoreError, LimitExceeded
from kvstore.rpc.pipeline import method_of
from kvstore.rpc.wire.operation_count import OTHER_FIELDS, require_operation_count
from kvstore.v1 import prefix_cache_pb2 as pb

LIMITS = Limits(max_batch_size=4)
PATH = "/kvstore.v1.PrefixCacheService/RunStep"
EMPTY = pb.RunStepRequest(operations=[pb.StepOperation()]).SerializeToString()


def is_refused(body: bytes) -> bool:
    """Returns whether a body is refused for its operations."""
    try:
        require_operation_count(body, LIMITS)
    except KVStoreError:
        return True
    return False


def step_of(count: int, tokens: int = 8) -> bytes:
    """Returns the body of a step of some matches."""
    match = pb.MatchPrefixRequest(sequence=pb.Sequence(tokens=bytes(4 * tokens)), pin_id=1 << 60)
    request = pb.RunStepRequest(
        caller=pb.Caller(lease_id=bytes(16), store_epoch=1 << 60, slot_ranges=True),
        namespace_id=bytes(16),
        operations=[pb.StepOperation(match=match)] * count,
    )
    return request.SerializeToString()


@pytest.mark.parametrize("tokens", [1, 100, 10_000])
def test_as_many_as_a_batch_pass(tokens: int) -> None:
    """However large each of them is; one more is refused."""
    assert not is_refused(step_of(4, tokens))
    assert is_refused(step_of(5, tokens))
    assert not is_refused(EMPTY * 4)
    assert is_refused(EMPTY * 5)


def test_they_are_counted_before_they_become_messages() -> None:
    """Four million empty operations are refused by the method's parser."""
    method = method_of(PATH, lambda *_: pb.RunStepResponse(), Limits())
    with pytest.raises(LimitExceeded) as refused:
        method.parse(EMPTY * (4 << 20))
    assert refused.value.metadata["limit"] == "max_batch_size"


@pytest.mark.parametrize(
    "unknown",
    [
        *(b"\x7b\x7c", b"\x7b", b"\xf8\x01\x01", b"\xf9\x01" + bytes(8), b"\xfd\x01" + bytes(4)),
        b"\xfa\x01\x03abc",
    ],
)
def test_nothing_hides_operations(unknown: bytes) -> None:
    """Fields that nobody knows, groups too, are passed, and are few."""
    assert not is_refused(unknown + EMPTY * 3)
    assert is_refused(unknown + EMPTY * 5)
    assert is_refused(unknown * (OTHER_FIELDS + 1))


@given(body=st.binary(max_size=200), count=st.integers(0, 12))
def test_what_passes_and_parses_has_no_more(body: bytes, count: int) -> None:
    """Whatever the bytes are, a request that is parsed has at most a batch of operations."""
    body = body[:100] + EMPTY * count + body[100:]
    if is_refused(body):
        return
    try:
        request = pb.RunStepRequest.FromString(body)
    except DecodeError:
        return
    assert len(request.operations) <= LIMITS.max_batch_size


def test_a_long_number_ends_the_count() -> None:
    """A number without an end takes a moment, and is left to the parser."""
    assert not is_refused(b"\xff" * (1 << 20))
