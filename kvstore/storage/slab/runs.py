"""Runs of adjacent pages, each copied between memory and the disk in one call."""

import mmap
import threading
from collections.abc import Sequence

from kvstore.storage.page_store import Content
from kvstore.storage.slab.file import SlabFile
from kvstore.storage.slab.layout import ALIGNMENT
from kvstore.storage.slab.segment import Segment

# The largest call, unless a page is larger.
RUN_BYTES = 4 << 20


def in_runs(slots: Sequence[int], slot_bytes: int) -> list[slice]:
    """Returns the slices of adjacent slots, in order, each of ``RUN_BYTES`` at most."""
    most = max(RUN_BYTES // slot_bytes, 1)
    cuts = [at for at in range(1, len(slots)) if slots[at] != slots[at - 1] + 1]
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(slots)], strict=True):
        found += [slice(at, min(at + most, end)) for at in range(start, end, most)]
    return found


class RunMover:
    """Writes and reads runs of slots. Thread-safe; raises ``OSError``.

    Aligned pages move without a copy; others go through a buffer of each thread.
    """

    def __init__(self, file: SlabFile) -> None:
        self._file = file
        self._local = threading.local()

    def write(self, segment: Segment, first: int, contents: Sequence[Content]) -> None:
        """Writes pages into slots from ``first`` on, and zeros into the padding."""
        views: list[memoryview] = []
        for number, content in enumerate(contents):
            if _is_direct(content):
                views += content
                continue
            slot = self._buffer(segment, number, len(contents))
            at = 0
            for each in content:
                slot[at : at + each.nbytes] = each
                at += each.nbytes
            slot[at:] = bytes(len(slot) - at)
            views.append(slot)
        self._file.write(segment.offset(first), views)

    def read(self, segment: Segment, first: int, contents: Sequence[Content]) -> None:
        """Reads the pages of slots from ``first`` on, without checking them."""
        views: list[memoryview] = []
        copied: list[tuple[memoryview, Content]] = []
        for number, content in enumerate(contents):
            if _is_direct(content):
                views += content
                continue
            slot = self._buffer(segment, number, len(contents))
            copied.append((slot, content))
            views.append(slot)
        self._file.read(segment.offset(first), views)
        for slot, content in copied:
            at = 0
            for each in content:
                each[:] = slot[at : at + each.nbytes]
                at += each.nbytes

    def _buffer(self, segment: Segment, number: int, count: int) -> memoryview:
        """Returns this thread's buffer for one slot of a run of ``count``."""
        size = segment.layout.slot_bytes
        memory: memoryview | None = getattr(self._local, "memory", None)
        if memory is None or memory.nbytes < count * size:
            memory = memoryview(mmap.mmap(-1, max(count * size, RUN_BYTES)))
            self._local.memory = memory
        return memory[number * size : (number + 1) * size]


def _is_direct(content: Content) -> bool:
    """Returns whether O_DIRECT can use a page's memory: aligned, and whole slots."""
    # As for copies of slots.
    import numpy as np  # noqa: PLC0415

    return all(
        each.nbytes % ALIGNMENT == 0
        and np.frombuffer(each, np.uint8).__array_interface__["data"][0] % ALIGNMENT == 0
        for each in content
    )
