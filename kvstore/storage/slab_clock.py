"""The order in which a full slab gives pages up, where nobody outside decides."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from kvstore.storage.slab_segment import Segment, SlotState

WINDOW = 64


class SlabPolicy(Protocol):
    """Nominates; the slab drops what it takes before it asks for the next."""

    def nominate(self, segments: Sequence[Segment]) -> Iterator[int]:
        """Yield slots of CACHED pages that nobody reads and that no cached page comes after."""
        ...


class SlabClock:
    """Second chance, leaves only, in windows of slots.

    A hand goes round all segments for pages of one size; a page that was read since it
    came by last is spared once. Within a window it goes backwards: a prompt's pages
    lie in their order, so its tail goes first, page by page, and what becomes FREE lies
    side by side and is written in one piece. A turn costs O(slots).
    """

    def __init__(self) -> None:
        # By the size of pages, where the hand goes on: the segment's place in the ring, its
        # window's first slot, and the slot that it goes on below.
        self._hands: dict[int, tuple[int, int, int]] = {}

    def nominate(self, segments: Sequence[Segment]) -> Iterator[int]:
        """Yield victims until a whole turn changes nothing."""
        windows = [
            (at, start)
            for at, segment in enumerate(segments)
            for start in range(0, len(segment.states), WINDOW)
        ]
        if not windows:
            return
        size = segments[0].layout.page_bytes
        *hand, below = self._hands.get(size, (0, 0, WINDOW))
        turn = next((turn for turn, each in enumerate(windows) if each == tuple(hand)), 0)
        idle = 0
        while idle <= len(windows):
            at, start = windows[turn % len(windows)]
            segment = segments[at]
            idle += 1
            for index in _leaves(segment, start, below):
                idle = 0
                if segment.touched[index]:
                    segment.touched[index] = 0
                else:
                    self._hands[size] = (at, start, index)
                    yield segment.slot(index)
            turn += 1
            below = windows[turn % len(windows)][1] + WINDOW


def _leaves(segment: Segment, start: int, below: int) -> Iterator[int]:
    """Yield the leaves of a window, backwards; what is dropped makes leaves of those before."""
    for index in reversed(range(start, min(below, len(segment.states)))):
        cached = segment.states[index] == SlotState.CACHED
        if cached and not segment.children[index] and not segment.readers[index]:
            yield index
