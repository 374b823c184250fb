"""Token ids as they travel: little-endian uint32."""

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import TypeAlias

TOKEN_BYTES = 4
# Of a match's or an acquire's field ``sequence``, and of that one's ``tokens``.
SEQUENCE_TAG, TOKENS_TAG = b"\x1a", b"\x0a"
# The bit of a number's byte that says so.
MORE_FOLLOW = 0x80

# Besides these, anything with the buffer protocol: a numpy array of uint32, a memoryview.
Tokens: TypeAlias = "Sequence[int] | bytes | bytearray | memoryview | array[int]"


def pack_tokens(tokens: Tokens) -> bytes:
    """Returns the wire's bytes of ``tokens``.

    Bytes are taken as packed already. Anything else with the buffer protocol is
    read by its own item type, so an array of 64-bit integers is converted.
    Raises ``ValueError`` for bytes that are not whole tokens, for ids that are
    no uint32, and for a buffer that is not one-dimensional.
    """
    if isinstance(tokens, bytes):
        return _whole(tokens)
    try:
        view = memoryview(tokens)  # type: ignore[arg-type]  # a sequence of int has no buffer
    except TypeError:
        return _pack(tokens)
    if view.ndim != 1:
        msg = f"token ids have one dimension, not {view.ndim}"
        raise ValueError(msg)
    if view.format == "B":
        return _whole(view.tobytes())
    if view.itemsize == TOKEN_BYTES and view.format in ("I", "L") and sys.byteorder == "little":
        return view.tobytes()
    return _pack(view.tolist())


def unpack_tokens(packed: bytes) -> list[int]:
    """Returns the token ids of the wire's bytes; raises ``ValueError`` as packing does."""
    return _little_endian(array("I", _whole(packed))).tolist()


def _pack(tokens: Iterable[int]) -> bytes:
    try:
        return _little_endian(array("I", tokens)).tobytes()
    except (OverflowError, TypeError) as error:
        msg = f"token ids are integers from 0 to 2**32 - 1: {error}"
        raise ValueError(msg) from error


def _whole(packed: bytes) -> bytes:
    if len(packed) % TOKEN_BYTES:
        msg = f"{len(packed)} bytes are not a multiple of {TOKEN_BYTES}"
        raise ValueError(msg)
    return packed


def _little_endian(ids: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def sequence_pieces(packed: bytes) -> list[bytes]:
    """Returns ``sequence.tokens`` of a match or an acquire, as it ends the request's bytes.

    Protobuf joins it with what the request says of its sequence before. Without a copy
    of the tokens, which for a long prompt takes longer than its match. Nothing for none.
    """
    if not packed:
        return []
    tokens = TOKENS_TAG + _varint(len(packed))
    return [SEQUENCE_TAG + _varint(len(tokens) + len(packed)) + tokens, packed]


def _varint(value: int) -> bytes:
    """Returns a number as protobuf writes it: seven bits a byte, the lowest first."""
    written = bytearray()
    while value >= MORE_FOLLOW:
        written.append(value % MORE_FOLLOW | MORE_FOLLOW)
        value //= MORE_FOLLOW
    written.append(value)
    return bytes(written)
