"""Eviction order of a full slab that no outside owner manages."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from kvstore.storage.slab.segment import Segment, SlotPhase

WINDOW = 64


class SlabPolicy(Protocol):
    """Nominates victims. The slab drops each accepted one before it asks for the next."""

    def nominate(self, segments: Sequence[Segment]) -> Iterator[int]:
        """Yields slots of CACHED pages without readers and without cached pages after them."""
        ...


class SlabClock:
    """Second chance for leaves, in windows of slots.

    A hand goes round all segments for pages of one size, and spares a page once if it was read
    since the last turn. Within a window it goes backwards. A prompt's pages are in order, so its
    tail goes first, and the FREE slots are adjacent for one write. A turn costs O(slots).
    """

    def __init__(self) -> None:
        # The hand's position by page size: the segment's index in the ring, the window's first
        # slot, and the slot below which it continues.
        self._hands: dict[int, tuple[int, int, int]] = {}

    def nominate(self, segments: Sequence[Segment]) -> Iterator[int]:
        """Yields victims until a whole turn finds none."""
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
    """Yields the leaves of a window, backwards. Dropping one can make its parent a leaf."""
    for index in reversed(range(start, min(below, len(segment.states)))):
        cached = segment.states[index] == SlotPhase.CACHED
        if cached and not segment.children[index] and not segment.readers[index]:
            yield index
