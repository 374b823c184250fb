"""Segments are cut so that everything is aligned and nothing overlaps."""

import pytest

from kvstore.storage.slab.header import HEADER_BYTES
from kvstore.storage.slab.layout import ALIGNMENT, MAX_SLOTS, SegmentLayout, layout_of


@pytest.mark.parametrize("segment_bytes", [8192, 12288, 1 << 20, 256 << 20])
@pytest.mark.parametrize("page_bytes", [1, 1000, 4096, 4097, 65536, 294912, 1 << 20])
def test_a_segment_holds_its_slots(segment_bytes: int, page_bytes: int) -> None:
    """Table and slots lie one behind the other, end within the segment, and none could be added."""
    layout = SegmentLayout(segment_bytes, page_bytes)
    assert layout.slot_bytes % ALIGNMENT == 0
    assert layout.slot_bytes >= page_bytes
    assert layout.table_bytes >= layout.slot_count * HEADER_BYTES
    assert layout.offset(0) == ALIGNMENT + layout.table_bytes
    assert layout.offset(layout.slot_count) <= max(segment_bytes, layout.offset(0))
    assert layout.offset(layout.slot_count) + layout.slot_bytes + HEADER_BYTES > (
        segment_bytes - ALIGNMENT
    )


def test_a_page_that_is_too_large_has_no_slot() -> None:
    """A page and 8 KiB have to fit."""
    assert SegmentLayout(1 << 20, (1 << 20) - 8192).slot_count == 1
    assert SegmentLayout(1 << 20, (1 << 20) - 8191).slot_count == 0


def test_a_segment_has_no_more_slots_than_can_be_numbered() -> None:
    """Very large segments of very small pages are not used to their end."""
    assert SegmentLayout(1 << 40, 1).slot_count == MAX_SLOTS


def test_layouts_are_computed_once() -> None:
    """A size in use costs one look-up."""
    assert layout_of(1 << 20, 4096) is layout_of(1 << 20, 4096)
