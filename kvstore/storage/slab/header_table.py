"""Tables of headers on their way to the disk."""

from collections.abc import Iterable

from kvstore.storage.slab.file import SlabFile
from kvstore.storage.slab.header import HEADER_BYTES
from kvstore.storage.slab.layout import ALIGNMENT, INDEX_BITS, INDEX_MASK
from kvstore.storage.slab.segment import Segment


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
