"""The tokens at the end of a long request, found without a parse of the request."""

from typing import NamedTuple

from kvstore.rpc.wire.varint import (
    FIXED64,
    LENGTH_DELIMITED,
    VARINT,
    read_varint,
    varint_bytes,
)
from kvstore.v1 import prefix_cache_pb2 as pb

# The field of every request that has a sequence.
SEQUENCE_KEY = pb.AcquirePrefixRequest.SEQUENCE_FIELD_NUMBER << 3 | LENGTH_DELIMITED
TOKENS_KEY = pb.Sequence.TOKENS_FIELD_NUMBER << 3 | LENGTH_DELIMITED
# Bytes of a body in which the tokens have to begin.
FRONT_BYTES = 256
# The field of a sequence that is there and empty.
EMPTY_SEQUENCE = bytes((SEQUENCE_KEY, 0))


class Tail(NamedTuple):
    """The places in a body where the field with the tokens begins, and where the tokens do."""

    field: int
    tokens: int


def tail_of(front: bytes, length: int) -> Tail | None:
    """Returns where the tokens are that end a body, or None if none end it.

    Clients write ``sequence.tokens`` of a match or an acquire last, and protobuf joins that field
    with the sequence before it. To parse such a body would copy a long prompt's tokens twice. So
    only the part before the tokens is parsed.

    ``front`` is the beginning of a body of ``length`` bytes. Raises nothing, whatever it is. The
    caller has to know that the body is of a request with a sequence.
    """
    place = 0
    try:
        while place < length:
            field = place
            key, place = read_varint(front, place)
            if key & 7 == LENGTH_DELIMITED:
                size, place = read_varint(front, place)
                if place + size == length and key == SEQUENCE_KEY:
                    outer = size
                    inner, place = read_varint(front, place)
                    size, place = read_varint(front, place)
                    ends = inner == TOKENS_KEY and place + size == length
                    # protobuf reads or refuses numbers of more bytes than they need.
                    shortest = place - field == 2 + varint_bytes(outer) + varint_bytes(size)
                    return Tail(field, place) if ends and shortest else None
                place += size
            elif key & 7 == VARINT:
                _, place = read_varint(front, place)
            elif key & 7 == FIXED64:
                place += 8
            else:
                return None
    except IndexError:
        # The part before the tokens is longer than ``front``.
        return None
    return None
