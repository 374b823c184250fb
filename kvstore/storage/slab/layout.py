"""Layout of a slab's segment: its header, a table of slot headers, then the slots.

Everything begins and ends at multiples of 4 KiB, as O_DIRECT requires on some disks.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

from kvstore.storage.slab.header import HEADER_BYTES

ALIGNMENT = 4096
INDEX_BITS = 20
INDEX_MASK = (1 << INDEX_BITS) - 1
MAX_SLOTS = 1 << INDEX_BITS


def rounded(size: int) -> int:
    """Returns ``size`` bytes rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class SegmentLayout:
    """A segment of ``segment_bytes`` for pages of ``page_bytes``. Cutting fixes both."""

    segment_bytes: int
    page_bytes: int

    @cached_property
    def slot_bytes(self) -> int:
        """A page's bytes, rounded up to the alignment."""
        return rounded(self.page_bytes)

    @cached_property
    def slot_count(self) -> int:
        """Number of slots that fit; 0 if a page is too large for a segment."""
        room = self.segment_bytes - ALIGNMENT
        count = min(room // (self.slot_bytes + HEADER_BYTES), MAX_SLOTS)
        while count > 0 and rounded(count * HEADER_BYTES) + count * self.slot_bytes > room:
            count -= 1
        return max(count, 0)

    @cached_property
    def table_bytes(self) -> int:
        """Bytes of the table of headers, which begins right after the segment's own header."""
        return rounded(self.slot_count * HEADER_BYTES)

    def offset(self, index: int) -> int:
        """Returns the first byte of a slot, from the segment's first byte."""
        return ALIGNMENT + self.table_bytes + index * self.slot_bytes


@lru_cache(maxsize=64)
def layout_of(segment_bytes: int, page_bytes: int) -> SegmentLayout:
    """Returns the layout of a segment, computed once for each size in use."""
    return SegmentLayout(segment_bytes, page_bytes)
