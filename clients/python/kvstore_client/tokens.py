"""Token ids as they travel: little-endian uint32."""

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import TypeAlias

TOKEN_BYTES = 4

# Besides these, anything with the buffer protocol: a numpy array of uint32, a memoryview.
Tokens: TypeAlias = "Sequence[int] | bytes | bytearray | memoryview | array[int]"


def pack_tokens(tokens: Tokens) -> bytes:
    """Return the wire's bytes of ``tokens``.

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
    """Return the token ids of the wire's bytes; raises ``ValueError`` as packing does."""
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
