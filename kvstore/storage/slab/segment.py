"""A segment of a slab as it is in memory: its table of headers, and what each slot is at."""

import mmap
from array import array
from enum import IntEnum

from kvstore.storage.slab.header import EMPTY, HEADER_BYTES, PARENT, Place, SlotHeader, decode
from kvstore.storage.slab.layout import ALIGNMENT, INDEX_BITS, SegmentLayout
from kvstore.storage.slab.superblock import SegmentHeader


class SlotState(IntEnum):
    """What may happen to a slot next."""

    FREE = 0
    """Its header on the disk is empty: it can be written."""
    WRITING = 1
    """A page is on its way; no header names it."""
    CACHED = 2
    """A page is there whole, and so is its header, on the disk."""
    LEAVING = 3
    """No reader finds it any more; its header is still on the disk."""
    GONE = 4
    """Its header is gone too; its last reader makes it FREE."""


class Segment:
    """One segment that was cut into slots. Not thread-safe.

    ``table`` is the table of headers as it is on the disk, or will be with the next
    commit; its bytes are written to the disk from here. ``states``, ``children`` (pages
    cached that come right after), ``readers`` and ``touched`` stand by the slot's index.
    ``room`` is how many slots are FREE.
    """

    def __init__(self, header: SegmentHeader, layout: SegmentLayout) -> None:
        count = layout.slot_count
        self.header = header
        self.layout = layout
        self.base = ALIGNMENT + header.number * layout.segment_bytes
        self.table = memoryview(mmap.mmap(-1, layout.table_bytes))
        self.states = bytearray(count)
        self.children = array("I", bytes(4 * count))
        self.readers = array("I", bytes(4 * count))
        self.touched = bytearray(count)
        self.room = count

    @property
    def table_offset(self) -> int:
        """Where the table begins in the file."""
        return self.base + ALIGNMENT

    def slot(self, index: int) -> int:
        """Returns the slab's number of a slot."""
        return self.header.number << INDEX_BITS | index

    def offset(self, index: int) -> int:
        """Returns where a slot begins in the file."""
        return self.base + self.layout.offset(index)

    def place(self, index: int) -> Place:
        """Returns where a slot's header belongs."""
        return Place(self.header.slab, self.header.carving, index)

    def raw(self, index: int) -> memoryview:
        """Returns a slot's header as bytes, in place."""
        return self.table[index * HEADER_BYTES : (index + 1) * HEADER_BYTES]

    def read_header(self, index: int) -> SlotHeader | None:
        """Returns a slot's header, checked; None where it is not whole, or says nothing."""
        raw = bytes(self.raw(index))
        return None if raw == EMPTY else decode(raw, self.place(index))

    def parent_digest(self, index: int) -> bytes:
        """Returns the parent's digest of the page in a slot, whose header is good."""
        start = index * HEADER_BYTES
        return bytes(self.table[start + PARENT.start : start + PARENT.stop])

    def restore(self, cached: bytearray) -> None:
        """Says after a restart which slots are CACHED, by a 1 at their index; others are FREE."""
        self.states = cached.replace(b"\1", bytes([SlotState.CACHED]))
        self.room = self.states.count(SlotState.FREE)

    def write_header(self, index: int, header: SlotHeader | None) -> None:
        """Sets a slot's header, or empty it; the disk has it with the next commit."""
        self.raw(index)[:] = EMPTY if header is None else header.encode(self.place(index))

    def move(self, index: int, state: SlotState) -> None:
        """Says what a slot is at."""
        self.room += (state is SlotState.FREE) - (self.states[index] == SlotState.FREE)
        self.states[index] = state
