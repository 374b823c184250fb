"""A request that ends with its sequence's tokens, taken apart without a copy of them.

Clients write ``sequence.tokens`` of a match or an acquire last (sequence { tokens }),
and protobuf joins it with what the request says of its sequence before. A body like that
needs not be parsed, which copies a long prompt's tokens twice: what is before them is.
"""

from typing import NamedTuple

from kvstore.rpc.packed import varint
from kvstore.v1 import prefix_cache_pb2 as pb

# Wire types.
VARINT, FIXED64, LENGTH_DELIMITED = 0, 1, 2
# The field of every request that has a sequence.
SEQUENCE_KEY = pb.AcquirePrefixRequest.SEQUENCE_FIELD_NUMBER << 3 | LENGTH_DELIMITED
TOKENS_KEY = pb.Sequence.TOKENS_FIELD_NUMBER << 3 | LENGTH_DELIMITED
# Bytes of a body that are looked at: what is before the tokens is shorter.
FRONT_BYTES = 256


class Tail(NamedTuple):
    """Where the field with the tokens begins in a body, and where they do, which end it."""

    field: int
    tokens: int


def tail_of(front: bytes, length: int) -> Tail | None:
    """Return where the tokens are that end a body, or None where none end it so.

    ``front`` is its beginning, of ``length`` bytes in all. Whatever comes, nothing is
    raised. That the body is of a request with a sequence is the caller's to check.
    """
    place = 0
    try:
        while place < length:
            field = place
            key, place = _varint(front, place)
            if key & 7 == LENGTH_DELIMITED:
                size, place = _varint(front, place)
                if place + size == length and key == SEQUENCE_KEY:
                    inner, place = _varint(front, place)
                    size, place = _varint(front, place)
                    ends = inner == TOKENS_KEY and place + size == length
                    # Numbers of more bytes than they need are protobuf's to read, or to refuse.
                    shortest = place - field == len(_keys(size))
                    return Tail(field, place) if ends and shortest else None
                place += size
            elif key & 7 == VARINT:
                _, place = _varint(front, place)
            elif key & 7 == FIXED64:
                place += 8
            else:
                return None
    except IndexError:
        # It goes on beyond what is looked at.
        return None
    return None


def _keys(size: int) -> bytes:
    """Return what clients write before so many bytes of tokens."""
    inner = bytes((TOKENS_KEY,)) + varint(size)
    return bytes((SEQUENCE_KEY,)) + varint(len(inner) + size) + inner


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004  # the bit that says that more follow
            return value, place
        shift += 7
