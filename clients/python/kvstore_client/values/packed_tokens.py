"""Token ids as they travel: little-endian uint32."""

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import TypeAlias

TOKEN_BYTES = 4
# One extra token of any value, for a match of whole pages: a match leaves the last token out.
ONE_MORE = bytes(TOKEN_BYTES)
# The tags of the field ``sequence`` of a match or an acquire, and of its field ``tokens``.
SEQUENCE_TAG, TOKENS_TAG = b"\x1a", b"\x0a"
# The bit of a varint's byte that says that more bytes follow.
MORE_FOLLOW = 0x80

# Besides these, anything with the buffer protocol: a numpy array of uint32, a memoryview.
Tokens: TypeAlias = "Sequence[int] | bytes | bytearray | memoryview | array[int]"


def pack_tokens(tokens: Tokens) -> bytes:
    """Returns the wire's bytes of ``tokens``.

    Bytes count as packed already. Any other buffer is read by its own item type, so an array of
    64-bit integers is converted. Raises ``ValueError`` for bytes that are not whole tokens, for
    ids that are no uint32, and for a buffer that is not one-dimensional.
    """
    if isinstance(tokens, bytes):
        return _whole(tokens)
    try:
        view = memoryview(tokens)  # type: ignore[arg-type]  # a sequence of int has no buffer
    except TypeError:
        return _pack(tokens)
    if view.ndim != 1:
        raise ValueError(f"token ids have one dimension, not {view.ndim}")
    if view.format == "B":
        return _whole(view.tobytes())
    if view.itemsize == TOKEN_BYTES and view.format in ("I", "L") and sys.byteorder == "little":
        return view.tobytes()
    return _pack(view.tolist())


def unpack_tokens(packed: bytes) -> list[int]:
    """Returns the ids of packed tokens; raises ``ValueError`` as packing does."""
    return _little_endian(array("I", _whole(packed))).tolist()


def _pack(tokens: Iterable[int]) -> bytes:
    try:
        return _little_endian(array("I", tokens)).tobytes()
    except (OverflowError, TypeError) as error:
        raise ValueError(f"token ids are integers from 0 to 2**32 - 1: {error}") from error


def _whole(packed: bytes) -> bytes:
    if len(packed) % TOKEN_BYTES:
        raise ValueError(f"{len(packed)} bytes are not a multiple of {TOKEN_BYTES}")
    return packed


def _little_endian(ids: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def sequence_pieces(packed: bytes) -> list[bytes]:
    """Returns the encoded ``sequence.tokens``, to append to a match's or an acquire's bytes.

    Protobuf merges it with the ``sequence`` that the request already has. The tokens are not
    copied, because for a long prompt that takes longer than the match. Returns no pieces for no
    tokens.
    """
    if not packed:
        return []
    tokens = TOKENS_TAG + _varint(len(packed))
    return [SEQUENCE_TAG + _varint(len(tokens) + len(packed)) + tokens, packed]


def _varint(value: int) -> bytes:
    """Returns a number as a varint of protobuf: seven bits a byte, the lowest first."""
    written = bytearray()
    while value >= MORE_FOLLOW:
        written.append(value % MORE_FOLLOW | MORE_FOLLOW)
        value //= MORE_FOLLOW
    written.append(value)
    return bytes(written)
