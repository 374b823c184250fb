"""The position of the tokens at the end of a request, found without parsing it."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from kvstore.rpc.wire.token_tail import FRONT_BYTES, SEQUENCE_KEY, TOKENS_KEY, Tail, tail_of
from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore_client.values.packed_tokens import sequence_pieces

TOKENS = bytes(range(256)) * 100


def varint(value: int) -> bytes:
    """Returns a number as protobuf writes it, by a message whose second field it is."""
    return pb.TierPages(page_count=value).SerializeToString()[1:]


def front_of(**fields: object) -> bytes:
    """Returns the bytes of a request before its tokens, as clients write them."""
    request = pb.AcquirePrefixRequest(
        caller=pb.Caller(lease_id=bytes(16), store_epoch=1 << 60),
        namespace_id=bytes(16),
        pin_id=1,
        reservation_id=(1 << 64) - 1,
        accept_next_token=True,
        total_page_count=1 << 31,
    )
    request.sequence.SetInParent()
    for name, value in fields.items():
        setattr(request.sequence, name, value)
    return request.SerializeToString()


@pytest.mark.parametrize("base", [{}, {"position": 5000, "base_pin_id": 9}])
def test_a_request_and_its_tokens_are_told_apart(base: dict[str, int]) -> None:
    """The bytes before the tokens parse to the rest of the request."""
    front = front_of(**base)
    key, tokens = sequence_pieces(TOKENS)
    body = front + key + tokens
    assert tail_of(body[:FRONT_BYTES], len(body)) == Tail(len(front), len(front) + len(key))
    whole = pb.AcquirePrefixRequest.FromString(body)
    parted = pb.AcquirePrefixRequest.FromString(front)
    parted.sequence.tokens = TOKENS
    assert parted == whole


def test_a_request_in_one_piece_has_no_tail_but_may_end_as_one() -> None:
    """A request has a tail only if its tokens are its last field."""
    request = pb.MatchPrefixRequest(sequence={"tokens": TOKENS}, pin_id=1)
    body = request.SerializeToString()
    assert tail_of(body[:FRONT_BYTES], len(body)) is None
    request = pb.MatchPrefixRequest(sequence={"tokens": TOKENS, "position": 1})
    body = request.SerializeToString()
    assert tail_of(body[:FRONT_BYTES], len(body)) is None
    body = pb.MatchPrefixRequest(sequence={"tokens": TOKENS}).SerializeToString()
    tail = tail_of(body[:FRONT_BYTES], len(body))
    assert tail is not None
    assert body[tail.tokens :] == TOKENS


def test_every_request_with_a_sequence_has_it_in_one_place() -> None:
    """All requests with a sequence have it in the same field, which the tail's search relies on."""
    for kind in (pb.MatchPrefixRequest, pb.AcquirePrefixRequest, pb.InsertPrefixRequest):
        assert kind.SEQUENCE_FIELD_NUMBER << 3 | 2 == SEQUENCE_KEY


@pytest.mark.parametrize("front", [b"", b"\x0b", b"\x80" * 256, b"\x1a\x7f", b"\x0d1234"])
def test_what_is_no_request_has_no_tail(front: bytes) -> None:
    """Groups, unknown kinds of fields and endless numbers have no tail."""
    assert tail_of(front, 100_000) is None


@given(st.binary(max_size=FRONT_BYTES), st.integers(0, 1 << 24))
def test_a_tail_lies_within_its_body(front: bytes, length: int) -> None:
    """A tail of any bytes lies within the body, and the search raises nothing."""
    tail = tail_of(front, length)
    if tail is not None:
        assert 0 <= tail.field < tail.tokens <= min(length, len(front))


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_numbers_that_protobuf_does_not_read_end_no_body(place: int) -> None:
    """An overlong key or length has no tail, because protobuf refuses it."""
    numbers = [bytes((SEQUENCE_KEY,)), varint(6), bytes((TOKENS_KEY,)), varint(4)]
    numbers[place] = bytes((numbers[place][0] | 0x80, *[0x80] * 9, 0))
    numbers[1] = varint(len(numbers[2]) + len(numbers[3]) + 4) if place != 1 else numbers[1]
    body = b"".join(numbers) + bytes(4)
    with pytest.raises(DecodeError):
        pb.MatchPrefixRequest.FromString(body)
    assert tail_of(body, len(body)) is None
