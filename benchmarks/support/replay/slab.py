"""Tier 3 with the slab's admission and order, but without a file."""

from collections import Counter
from collections.abc import Container
from itertools import islice

from kvstore.core.tiers.disk_reads import Located
from kvstore.core.tiers.disk_writes import DiskWrite
from kvstore.storage.slab.allocator import EVICT_AT_ONCE
from kvstore.storage.slab.header import HEADER_BYTES
from kvstore.storage.slab.layout import ALIGNMENT, rounded
from kvstore.storage.slab.policy import SlabClock
from kvstore.storage.slab.segment import Segment, SlotPhase
from kvstore.storage.slab.slot_pool import SlotPool
from kvstore.storage.slab.superblock import SegmentHeader
from kvstore.storage.write_admission import SecondTouch, WriteAdmission

PAGE_BYTES = ALIGNMENT
# Remembered first uses, as a multiple of all pages of the tiers.
REMEMBERED = 8


class ReplaySlab:
    """One segment of ``capacity`` slots, whose pages are named by their digests.

    It does at once what the store's keeper and loader do with a slab. It remembers at most
    ``remembered`` first uses.
    """

    def __init__(self, capacity: int, remembered: int) -> None:
        size = ALIGNMENT + rounded(capacity * HEADER_BYTES) + capacity * PAGE_BYTES
        self.write_count = 0
        self._lost = False
        self._pool = SlotPool(size, 1)
        header = SegmentHeader(b"", 0, 1, PAGE_BYTES)
        self._segment = Segment(header, self._pool.layout(PAGE_BYTES))
        self._pool.assign(self._segment)
        self._policy = SlabClock()
        self._admission = SecondTouch(remembered)
        self._slots: dict[bytes, int] = {}
        # The page of each used slot, and the page before that.
        self._pages: dict[int, tuple[bytes, bytes]] = {}
        # Pages without their parent here, counted by parent, like in the slab's index.
        self._waiting: Counter[bytes] = Counter()

    def leading(self, located: Located) -> int:
        """Returns the number of consecutive pages, from the first on, that could be loaded."""
        count = 0
        for digest in located.page_digests():
            if digest not in self._slots:
                break
            count += 1
        return count

    def read(self, located: Located, count: int) -> None:
        """Records that the first ``count`` pages were read."""
        for digest in islice(located.page_digests(), count):
            self._segment.touched[self._slots[digest]] = 1

    def forgets(self) -> bool:
        """Returns True if pages were evicted since the last call."""
        lost, self._lost = self._lost, False
        return lost

    def keep(self, keep: DiskWrite) -> int:
        """Writes a path's worthy pages. Returns the end of the pages that are all stored."""
        wanted = wanted_pages(keep, self._slots, self._admission)
        self._write(wanted)
        return stored_end(keep, self._slots)

    def _write(self, pages: list[tuple[bytes, bytes]]) -> None:
        """Writes pages, each with the digest of the one before, as far as there is room."""
        above = [self._slots[parent] for _, parent in pages if parent in self._slots]
        for index in above:
            self._segment.readers[index] += 1
        short = len(pages) - self._pool.available(PAGE_BYTES)
        if short > 0:
            most = min(max(short, EVICT_AT_ONCE), max(len(self._segment.states) // 2, 1))
            for slot in islice(self._policy.nominate([self._segment]), most):
                self._drop(slot)
        for index in above:
            self._segment.readers[index] -= 1
        rest = iter(pages)
        left = len(pages)
        while left and (slots := self._pool.take(PAGE_BYTES, left)):
            left -= len(slots)
            for slot, page in zip(slots, islice(rest, len(slots)), strict=True):
                self._enter(slot, page)

    def _enter(self, slot: int, page: tuple[bytes, bytes]) -> None:
        digest, parent = page
        self._segment.move(slot, SlotPhase.CACHED)
        self._segment.touched[slot] = 0
        self._segment.children[slot] = self._waiting.pop(digest, 0)
        self._slots[digest], self._pages[slot] = slot, page
        self._count(parent, 1)
        self.write_count += 1

    def _drop(self, slot: int) -> None:
        digest, parent = self._pages.pop(slot)
        del self._slots[digest]
        self._segment.move(slot, SlotPhase.FREE)
        self._count(parent, -1)
        self._lost = True

    def _count(self, parent: bytes, change: int) -> None:
        """Counts an added or removed page at its parent, or among those that wait for it."""
        if parent in self._slots:
            self._segment.children[self._slots[parent]] += change
            return
        self._waiting[parent] += change
        if not self._waiting[parent]:
            del self._waiting[parent]


def wanted_pages(
    keep: DiskWrite, stored: Container[bytes], admission: WriteAdmission
) -> list[tuple[bytes, bytes]]:
    """Returns the pages of a path to write now, each with the digest of its parent."""
    wanted: list[tuple[bytes, bytes]] = []
    follows = True
    for page in keep.pages:
        digest = keep.digests.through(page.end)
        there = digest in stored
        worth = there or admission.touch(digest)
        if worth and not (there or follows):
            # Nobody finds it without its parent, so its next use is its second again.
            admission.touch(digest)
        follows = follows and worth
        if follows and not there:
            wanted.append((digest, keep.digests.through(page.end - 1)))
    return wanted


def stored_end(keep: DiskWrite, stored: Container[bytes]) -> int:
    """Returns the end of a path's pages that are all stored."""
    end = keep.start
    while end < keep.held_end and keep.digests.through(end + 1) in stored:
        end += 1
    return end
