"""Plain values as bytes: numbers, strings, bytes and tuples of them, each with its type."""

from collections.abc import Iterable
from struct import Struct
from typing import Any

_SIZE = Struct("<I")
_NUMBER = Struct("<d")
_NONE, _FALSE, _TRUE, _INT, _FLOAT, _BYTES, _STR, _TUPLE = (bytes((each,)) for each in range(8))


def pack(values: Iterable[object]) -> bytes:
    """Returns the bytes of some values. Raises TypeError for a value that is not plain."""
    return _tuple(values)[1:]


def unpack(data: bytes) -> tuple[Any, ...]:
    """Returns the values that ``pack`` made of them. Raises ValueError for other bytes."""
    try:
        values, end = _read_tuple(data, 0)
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"{len(data)} bytes are no values") from error
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes are left")
    return values


def _tuple(values: Iterable[object]) -> bytes:
    parts = [_value(each) for each in values]
    return _TUPLE + _SIZE.pack(len(parts)) + b"".join(parts)


def _value(value: object) -> bytes:
    if value is None:
        return _NONE
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, tuple):
        return _tuple(value)
    return _scalar_bytes(value)


def _scalar_bytes(value: object) -> bytes:
    if isinstance(value, int):
        size = value.bit_length() // 8 + 1
        return _sized(_INT, value.to_bytes(size, "little", signed=True))
    if isinstance(value, float):
        return _sized(_FLOAT, _NUMBER.pack(value))
    if isinstance(value, bytes):
        return _sized(_BYTES, value)
    if isinstance(value, str):
        return _sized(_STR, value.encode())
    raise TypeError(f"no plain value: {value!r}")


def _sized(kind: bytes, data: bytes) -> bytes:
    return kind + _SIZE.pack(len(data)) + data


def _read(data: bytes, at: int) -> tuple[Any, int]:
    kind, at = data[at : at + 1], at + 1
    if kind in (_NONE, _FALSE, _TRUE):
        return {_NONE: None, _FALSE: False, _TRUE: True}[kind], at
    if kind == _TUPLE:
        return _read_tuple(data, at)
    size = _size(data, at)
    at += _SIZE.size
    part = data[at : at + size]
    if len(part) < size:
        raise IndexError(at)
    return _scalar(kind, part), at + size


def _read_tuple(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
    count = _size(data, at)
    at += _SIZE.size
    values = []
    for _ in range(count):
        value, at = _read(data, at)
        values.append(value)
    return tuple(values), at


def _size(data: bytes, at: int) -> int:
    part = data[at : at + _SIZE.size]
    if len(part) < _SIZE.size:
        raise IndexError(at)
    return int.from_bytes(part, "little")


def _scalar(kind: bytes, part: bytes) -> int | float | str | bytes:
    if kind == _INT:
        return int.from_bytes(part, "little", signed=True)
    if kind == _FLOAT and len(part) == _NUMBER.size:
        return float(_NUMBER.unpack(part)[0])
    if kind == _BYTES:
        return part
    if kind == _STR:
        return part.decode()
    raise IndexError(kind)
