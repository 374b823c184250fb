"""A small slab whose pages' bytes follow from their numbers, and calls that wait."""

from collections.abc import Sequence
from pathlib import Path

from page_stores.numbered_pages import (
    LIMIT,
    NAMESPACE,
    PAGE_BYTES,
    NumberedPages,
    key,
    memory,
    page_bytes,
)

from kvstore.storage.page_store import PageKey
from kvstore.storage.slab.layout import ALIGNMENT
from kvstore.storage.slab.policy import SlabPolicy
from kvstore.storage.slab.slab import Slab, SlabConfig

SEGMENT_BYTES = 1 << 20


def config(path: Path, segments: int = 2, segment_bytes: int = SEGMENT_BYTES) -> SlabConfig:
    """Returns the settings of a slab with so many segments."""
    return SlabConfig(
        path, ALIGNMENT + segments * segment_bytes, segment_bytes=segment_bytes, thread_count=2
    )


class SlabRig:
    """A slab, and the keys of the pages that left it by themselves."""

    def __init__(self, settings: SlabConfig, policy: SlabPolicy | None = None) -> None:
        self.settings = settings
        self.lost: list[PageKey] = []
        self.slab = Slab(settings, policy, self.lost.extend)
        pages = NumberedPages(lambda: self.slab)
        self.begin = pages.begin
        self.write = pages.write
        self.answer = pages.answer
        self.found = pages.found
        self.remove = pages.remove

    def reopen(self, policy: SlabPolicy | None = None) -> None:
        """Closes the slab, and open it again."""
        self.slab.close()
        self.slab = Slab(self.settings, policy, self.lost.extend)

    def slot_offset(self, number: int) -> int:
        """Returns where page ``number`` lies in the file."""
        tables = self.slab._tables
        slot = tables.index.find(key(number))
        assert slot is not None
        segment, index = tables.pool.at(slot)
        return segment.offset(index)

    def header_offset(self, number: int) -> int:
        """Returns where the header of page ``number`` lies in the file."""
        tables = self.slab._tables
        slot = tables.index.find(key(number))
        assert slot is not None
        segment, index = tables.pool.at(slot)
        return segment.table_offset + index * 128

    def flip(self, offsets: Sequence[int]) -> None:
        """Changes a byte at each offset of the file, behind the slab's back."""
        flip(self.settings.path, offsets)


def flip(path: Path, offsets: Sequence[int]) -> None:
    """Changes a byte at each offset of a file."""
    with path.open("r+b") as file:
        for offset in offsets:
            file.seek(offset)
            (byte,) = file.read(1)
            file.seek(offset)
            file.write(bytes([byte ^ 0xFF]))


__all__ = [
    "LIMIT",
    "NAMESPACE",
    "PAGE_BYTES",
    "SEGMENT_BYTES",
    "SlabRig",
    "config",
    "flip",
    "key",
    "memory",
    "page_bytes",
]
