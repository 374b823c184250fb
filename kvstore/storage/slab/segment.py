"""A segment of a slab in memory: its table of headers, and the state of each slot."""

import mmap
from array import array
from collections.abc import Iterable
from enum import IntEnum

from kvstore.storage.slab.file import SlabFile
from kvstore.storage.slab.header import EMPTY, HEADER_BYTES, PARENT, Place, SlotHeader, decode
from kvstore.storage.slab.layout import ALIGNMENT, INDEX_BITS, INDEX_MASK, SegmentLayout
from kvstore.storage.slab.superblock import SegmentHeader


class SlotPhase(IntEnum):
    """State of a slot."""

    FREE = 0
    """The header on the disk is empty, so the slot can be written."""
    WRITING = 1
    """A page is being written; no header names it."""
    CACHED = 2
    """The page and its header are on the disk."""
    LEAVING = 3
    """Readers no longer find the page; its header is still on the disk."""
    GONE = 4
    """The header is empty on the disk; the last reader makes the slot FREE."""


class Segment:
    """One segment that is cut into slots. Not thread-safe.

    ``table`` is the table of headers as the next commit writes it to the disk. ``states``,
    ``children`` (cached pages that follow directly), ``readers`` and ``touched`` are by slot
    index. ``free_count`` is the number of FREE slots.
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
        self.free_count = count

    @property
    def table_offset(self) -> int:
        """Offset of the table in the file."""
        return self.base + ALIGNMENT

    def slot(self, index: int) -> int:
        """Returns the slab's number of a slot."""
        return self.header.number << INDEX_BITS | index

    def offset(self, index: int) -> int:
        """Returns the offset of a slot in the file."""
        return self.base + self.layout.offset(index)

    def place(self, index: int) -> Place:
        """Returns the place of a slot's header."""
        return Place(self.header.slab, self.header.carving, index)

    def raw(self, index: int) -> memoryview:
        """Returns the bytes of a slot's header, in place."""
        return self.table[index * HEADER_BYTES : (index + 1) * HEADER_BYTES]

    def read_header(self, index: int) -> SlotHeader | None:
        """Returns a slot's checked header; None if it is torn, foreign or empty."""
        raw = bytes(self.raw(index))
        return None if raw == EMPTY else decode(raw, self.place(index))

    def parent_digest(self, index: int) -> bytes:
        """Returns the digest of the parent of a slot's page. The header must be good."""
        start = index * HEADER_BYTES
        return bytes(self.table[start + PARENT.start : start + PARENT.stop])

    def restore(self, cached: bytearray) -> None:
        """Sets all states after a restart: CACHED for a 1 in ``cached``, else FREE."""
        self.states = cached.replace(b"\1", bytes([SlotPhase.CACHED]))
        self.free_count = self.states.count(SlotPhase.FREE)

    def write_header(self, index: int, header: SlotHeader | None) -> None:
        """Sets a slot's header, or empties it. The next commit writes it to the disk."""
        self.raw(index)[:] = EMPTY if header is None else header.encode(self.place(index))

    def move(self, index: int, state: SlotPhase) -> None:
        """Changes the state of a slot."""
        self.free_count += (state is SlotPhase.FREE) - (self.states[index] == SlotPhase.FREE)
        self.states[index] = state


def write_headers(file: SlabFile, segments: dict[int, Segment], slots: Iterable[int]) -> None:
    """Writes the headers of slots from their tables. Returns once they are durable.

    The smallest write is 4 KiB, 32 headers; adjacent ones share a call. The tables must not
    change meanwhile. Raises ``OSError``.
    """
    pieces = sorted(
        {(slot >> INDEX_BITS, (slot & INDEX_MASK) * HEADER_BYTES // ALIGNMENT) for slot in slots}
    )
    at = 0
    while at < len(pieces):
        number, first = pieces[at]
        end = at + 1
        while end < len(pieces) and pieces[end] == (number, first + end - at):
            end += 1
        segment = segments[number]
        start, size = first * ALIGNMENT, (end - at) * ALIGNMENT
        file.write(segment.table_offset + start, [segment.table[start : start + size]])
        at = end
    if pieces:
        file.sync()
