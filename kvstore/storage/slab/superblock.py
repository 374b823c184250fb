"""The superblock of a slab's file, and the header of each segment."""

import struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from kvstore.storage.errors import SlabUnusable
from kvstore.storage.slab.header import FORMAT_VERSION
from kvstore.storage.slab.layout import ALIGNMENT

SLAB_MAGIC = b"kvstore slab\r\n\x1a\n"
SEGMENT_MAGIC = b"kvstore segment\n"
_SLAB = struct.Struct("<16sIIQ16s")
_SEGMENT = struct.Struct("<16sIIQ16sQQ")
_CHECKSUM = struct.Struct("<Q")


class Superblock(NamedTuple):
    """The file's first 4 KiB. ``made`` is False until all of the file was preallocated."""

    slab: bytes
    segment_bytes: int
    made: bool

    def encode(self) -> bytes:
        """Returns the 4 KiB."""
        return _sealed(
            _SLAB.pack(SLAB_MAGIC, FORMAT_VERSION, self.made, self.segment_bytes, self.slab)
        )


class SegmentHeader(NamedTuple):
    """A segment's first 4 KiB: its place, the number of its cut, and the size of its pages."""

    slab: bytes
    number: int
    carving: int
    page_bytes: int

    def encode(self) -> bytes:
        """Returns the 4 KiB."""
        return _sealed(
            _SEGMENT.pack(
                *(SEGMENT_MAGIC, FORMAT_VERSION, 0, self.number),
                *(self.slab, self.carving, self.page_bytes),
            )
        )


def decode_superblock(raw: bytes) -> Superblock:
    """Returns the file's superblock.

    Raises :class:`SlabUnusable` if the file is no slab, has another format, or is damaged. So the
    store never overwrites a file that it does not understand.
    """
    magic, version, made, segment_bytes, slab = _SLAB.unpack_from(raw)
    if magic != SLAB_MAGIC:
        raise SlabUnusable("the file is not empty, and no slab: choose another path")
    if version != FORMAT_VERSION:
        raise SlabUnusable(
            f"the slab has format {version}, and this program {FORMAT_VERSION}: remove the file"
        )
    if not _intact(raw, _SLAB.size):
        raise SlabUnusable("the slab's superblock is damaged: remove the file")
    return Superblock(slab, segment_bytes, bool(made))


def decode_segment(raw: bytes, slab: bytes, number: int) -> SegmentHeader | None:
    """Returns a segment's header; None if it is not cut, or the header is torn or foreign."""
    magic, version, _, own_number, own_slab, carving, page_bytes = _SEGMENT.unpack_from(raw)
    known = (magic, version, own_number, own_slab) == (SEGMENT_MAGIC, FORMAT_VERSION, number, slab)
    if not known or not _intact(raw, _SEGMENT.size):
        return None
    return SegmentHeader(slab, number, carving, page_bytes)


def _sealed(fields: bytes) -> bytes:
    """Returns the fields with their checksum, padded."""
    return (fields + _CHECKSUM.pack(xxh3_64_intdigest(fields))).ljust(ALIGNMENT, b"\0")


def _intact(raw: bytes, size: int) -> bool:
    (checksum,) = _CHECKSUM.unpack_from(raw, size)
    return bool(checksum == xxh3_64_intdigest(raw[:size]))
