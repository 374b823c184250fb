"""A slab's superblock is whole, or is not believed."""

import pytest

from kvstore.storage.errors import SlabUnusable
from kvstore.storage.slab.layout import ALIGNMENT
from kvstore.storage.slab.superblock import (
    SegmentHeader,
    Superblock,
    decode_segment,
    decode_superblock,
)

SLAB = b"0123456789abcdef"
SUPERBLOCK = Superblock(SLAB, 1 << 20, made=True)
SEGMENT = SegmentHeader(SLAB, 5, 12, 8192)


def changed(raw: bytes, at: int) -> bytes:
    """Returns bytes with one of them changed."""
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


def test_a_superblock_says_what_it_was_told() -> None:
    """It is 4 KiB, and each field comes back."""
    assert len(SUPERBLOCK.encode()) == ALIGNMENT
    for each in (SUPERBLOCK, SUPERBLOCK._replace(made=False)):
        assert decode_superblock(each.encode()) == each


@pytest.mark.parametrize(
    ("at", "why"), [(0, "no slab"), (16, "format"), (24, "damaged"), (40, "damaged")]
)
def test_a_superblock_that_is_not_understood_is_refused(at: int, why: str) -> None:
    """Another file, another format and damage are told apart, and none is written over."""
    with pytest.raises(SlabUnusable, match=why):
        decode_superblock(changed(SUPERBLOCK.encode(), at))


def test_a_segment_says_what_it_was_told() -> None:
    """It is 4 KiB, and each field comes back in its own place."""
    raw = SEGMENT.encode()
    assert len(raw) == ALIGNMENT
    assert decode_segment(raw, SLAB, 5) == SEGMENT


def test_a_segment_that_is_torn_or_foreign_is_not_cut() -> None:
    """Another place, another slab, another format, damage, and nothing at all."""
    raw = SEGMENT.encode()
    assert decode_segment(raw, SLAB, 6) is None
    assert decode_segment(raw, b"another slab 123", 5) is None
    for at in (0, 16, 24, 32, 50, 56, 64):
        assert decode_segment(changed(raw, at), SLAB, 5) is None
    assert decode_segment(bytes(ALIGNMENT), SLAB, 5) is None
