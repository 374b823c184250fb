"""Free slots, and segments that change their owner."""

from kvstore.storage.slab.layout import layout_of
from kvstore.storage.slab.room import SlabRoom
from kvstore.storage.slab.segment import Segment, SlotState
from kvstore.storage.slab.superblock import SegmentHeader

SEGMENT_BYTES = 64 << 10
SMALL, LARGE, TOO_LARGE = 4096, 16384, 65536


def cut(room: SlabRoom, number: int, page_bytes: int) -> Segment:
    """Cuts a segment for pages of a size."""
    header = SegmentHeader(bytes(16), number, 1, page_bytes)
    segment = Segment(header, layout_of(SEGMENT_BYTES, page_bytes))
    room.assign(segment)
    return segment


def fill(segment: Segment) -> None:
    """Puts a page into each slot."""
    for index in range(segment.layout.slot_count):
        segment.move(index, SlotState.CACHED)


def test_slots_side_by_side_are_taken_together() -> None:
    """The longest run by halving comes first; what is left over comes in pieces."""
    room = SlabRoom(SEGMENT_BYTES, 1)
    segment = cut(room, 0, SMALL)
    assert segment.layout.slot_count == 14
    assert room.take(SMALL, 4) == [0, 1, 2, 3]
    segment.move(1, SlotState.FREE)
    assert room.available(SMALL) == 11
    assert room.take(SMALL, 8) == [4, 5, 6, 7, 8, 9, 10, 11]
    assert room.take(SMALL, 8) == [1]
    assert room.take(SMALL, 8) == [12, 13]
    assert room.take(SMALL, 8) == []
    assert set(segment.states) == {SlotState.WRITING}


def test_slots_are_numbered_by_segment() -> None:
    """A slot's number leads to its segment and its index."""
    room = SlabRoom(SEGMENT_BYTES, 3)
    segment = cut(room, 2, SMALL)
    first, second = room.take(SMALL, 2)
    assert room.at(first) == (segment, 0)
    assert room.at(second) == (segment, 1)
    assert room.take(LARGE, 1) == []
    assert room.sizes() == [SMALL]


def test_a_segment_that_is_not_cut_is_spare() -> None:
    """The first of them; for a page that fits none there is none."""
    room = SlabRoom(SEGMENT_BYTES, 2)
    assert room.spare(TOO_LARGE) is None
    assert room.over_share(TOO_LARGE) is None
    cut(room, 0, SMALL)
    assert room.spare(SMALL) == 1
    cut(room, 1, SMALL)
    assert room.spare(SMALL) is None


def test_an_empty_segment_of_another_size_is_spare() -> None:
    """One with a page in it, whatever it is at, is not."""
    room = SlabRoom(SEGMENT_BYTES, 1)
    segment = cut(room, 0, SMALL)
    assert room.spare(LARGE) == 0
    for state in (SlotState.WRITING, SlotState.CACHED, SlotState.LEAVING, SlotState.GONE):
        segment.move(3, state)
        assert room.spare(LARGE) is None
    segment.move(3, SlotState.FREE)
    cut(room, 0, LARGE)
    assert room.sizes() == [LARGE]
    assert room.available(SMALL) == 0


def test_a_size_takes_no_more_than_its_share() -> None:
    """The size with most segments gives its oldest; nobody falls below an equal share."""
    room = SlabRoom(SEGMENT_BYTES, 4)
    segments = [cut(room, number, SMALL) for number in (2, 0, 1, 3)]
    for each in segments:
        fill(each)
    assert room.over_share(SMALL) is None
    assert room.over_share(LARGE) is segments[0]
    fill(cut(room, 2, LARGE))
    assert room.over_share(LARGE) is segments[1]
    fill(cut(room, 0, LARGE))
    assert room.over_share(LARGE) is None
    assert room.over_share(SMALL) is None


def test_a_segment_where_something_moves_is_not_given_up() -> None:
    """Neither one that is written or left just now, nor one that is read."""
    room = SlabRoom(SEGMENT_BYTES, 2)
    first, second = cut(room, 0, SMALL), cut(room, 1, SMALL)
    first.move(0, SlotState.LEAVING)
    assert room.over_share(LARGE) is second
    second.readers[3] = 1
    assert room.over_share(LARGE) is None
