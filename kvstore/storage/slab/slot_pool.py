"""The segments of a slab, by number and page size, and their free slots."""

from collections.abc import Sequence

from kvstore.storage.slab.layout import INDEX_BITS, INDEX_MASK, SegmentLayout, layout_of
from kvstore.storage.slab.segment import Segment, SlotPhase


class SlotPool:
    """Segments by number and by page size. Not thread-safe.

    A segment's slots have exactly the size of a namespace's pages. A host has few sizes, and
    rounding them up would waste up to half of the disk. A segment is cut when it is first
    needed, and again once it is empty and another size needs it.
    """

    def __init__(self, segment_bytes: int, segment_count: int) -> None:
        self.segment_bytes = segment_bytes
        self.segment_count = segment_count
        self.segments: dict[int, Segment] = {}
        self._by_size: dict[int, list[Segment]] = {}

    def layout(self, page_bytes: int) -> SegmentLayout:
        """Returns the layout of a segment for pages of one size."""
        return layout_of(self.segment_bytes, page_bytes)

    def of_size(self, page_bytes: int) -> Sequence[Segment]:
        """Returns the segments for pages of one size, in the order in which they were cut."""
        return self._by_size.get(page_bytes, ())

    def sizes(self) -> list[int]:
        """Returns the page sizes that have segments."""
        return list(self._by_size)

    def available(self, page_bytes: int) -> int:
        """Returns the number of FREE slots for pages of one size."""
        return sum(each.free_count for each in self.of_size(page_bytes))

    def assign(self, segment: Segment) -> None:
        """Adds a segment that was cut, in place of the one of the same number."""
        before = self.segments.get(segment.header.number)
        if before is not None:
            self._withdraw(before)
        self.segments[segment.header.number] = segment
        self._by_size.setdefault(segment.layout.page_bytes, []).append(segment)

    def spare(self, page_bytes: int) -> int | None:
        """Returns the number of a segment to cut for pages of one size, or None.

        Prefers one that is not cut, then one of another size without pages.
        """
        if self.layout(page_bytes).slot_count == 0:
            return None
        if len(self.segments) < self.segment_count:
            return next(each for each in range(self.segment_count) if each not in self.segments)
        empty = (
            each.header.number
            for size, segments in self._by_size.items()
            for each in segments
            if size != page_bytes and each.free_count == each.layout.slot_count
        )
        return next(empty, None)

    def over_share(self, page_bytes: int) -> Segment | None:
        """Returns a segment that another size must give up for this one, or None.

        Sizes have equal shares. A size below its share takes from the size with most segments,
        the one that was cut first. A segment with pages being written, removed or read is skipped.
        """
        if self.layout(page_bytes).slot_count == 0:
            return None
        share = self.segment_count // len({*self._by_size, page_bytes})
        if len(self.of_size(page_bytes)) >= share:
            return None
        most = max(self._by_size.values(), key=len)
        return next((each for each in most if _at_rest(each)), None) if len(most) > share else None

    def take(self, page_bytes: int, most: int) -> list[int]:
        """Makes up to ``most`` adjacent FREE slots WRITING, and returns them."""
        for segment in self.of_size(page_bytes):
            if segment.free_count:
                first, count = _run(segment, min(most, segment.free_count))
                for index in range(first, first + count):
                    segment.move(index, SlotPhase.WRITING)
                return [segment.slot(index) for index in range(first, first + count)]
        return []

    def at(self, slot: int) -> tuple[Segment, int]:
        """Returns a slot's segment, and its index in the segment."""
        return self.segments[slot >> INDEX_BITS], slot & INDEX_MASK

    def _withdraw(self, segment: Segment) -> None:
        size = segment.layout.page_bytes
        self._by_size[size].remove(segment)
        if not self._by_size[size]:
            del self._by_size[size]


def _run(segment: Segment, most: int) -> tuple[int, int]:
    """Returns the start and the length of a run of FREE slots: the longest by halving."""
    length = most
    while (first := segment.states.find(bytes(length))) < 0:
        length //= 2
    return first, length


def _at_rest(segment: Segment) -> bool:
    """Returns whether each slot is FREE or CACHED and has no reader."""
    moving = (SlotPhase.WRITING, SlotPhase.LEAVING, SlotPhase.GONE)
    return not any(each in segment.states for each in moving) and not any(segment.readers)
