"""Copies of bytes, and memory that is cleared."""

import random

import pytest

from kvstore.remote.buffers import clear_bytes, copy_bytes


@pytest.mark.parametrize("size", [0, 1, 7, 4096, 100_001])
def test_bytes_are_copied_to_their_place_alone(size: int) -> None:
    """Bytes beside the buffer stay as they are, also at odd addresses."""
    memory = bytearray(b"\xee" * (size + 20))
    content = random.Random(size).randbytes(size)
    copy_bytes(memoryview(memory)[3 : size + 3], memoryview(content))
    assert memory == b"\xee" * 3 + content + b"\xee" * 17


@pytest.mark.parametrize("size", [0, 1, 3, 5])
def test_another_length_is_refused(size: int) -> None:
    """One byte is not spread over many."""
    target = bytearray(4)
    with pytest.raises(ValueError, match="fill"):
        copy_bytes(memoryview(target), memoryview(b"x" * size))
    assert target == bytes(4)


@pytest.mark.parametrize("size", [0, 1, 7, 4096, 100_001])
def test_a_buffer_alone_is_cleared(size: int) -> None:
    """Bytes beside it stay as they are, also at odd addresses."""
    memory = bytearray(b"\xee" * (size + 20))
    clear_bytes(memoryview(memory)[3 : size + 3])
    assert memory == b"\xee" * 3 + bytes(size) + b"\xee" * 17
