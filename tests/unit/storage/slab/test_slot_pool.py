"""The free slots of a slab, and the segments that change to pages of another size."""

from kvstore.storage.slab.layout import layout_of
from kvstore.storage.slab.segment import Segment, SlotPhase
from kvstore.storage.slab.slot_pool import SlotPool
from kvstore.storage.slab.superblock import SegmentHeader

SEGMENT_BYTES = 64 << 10
SMALL, LARGE, TOO_LARGE = 4096, 16384, 65536


def cut(pool: SlotPool, number: int, page_bytes: int) -> Segment:
    """Cuts a segment for pages of a size."""
    header = SegmentHeader(bytes(16), number, 1, page_bytes)
    segment = Segment(header, layout_of(SEGMENT_BYTES, page_bytes))
    pool.assign(segment)
    return segment


def fill(segment: Segment) -> None:
    """Puts a page into each slot."""
    for index in range(segment.layout.slot_count):
        segment.move(index, SlotPhase.CACHED)


def test_slots_side_by_side_are_taken_together() -> None:
    """The longest run by halving comes first; what is left over comes in pieces."""
    pool = SlotPool(SEGMENT_BYTES, 1)
    segment = cut(pool, 0, SMALL)
    assert segment.layout.slot_count == 14
    assert pool.take(SMALL, 4) == [0, 1, 2, 3]
    segment.move(1, SlotPhase.FREE)
    assert pool.available(SMALL) == 11
    assert pool.take(SMALL, 8) == [4, 5, 6, 7, 8, 9, 10, 11]
    assert pool.take(SMALL, 8) == [1]
    assert pool.take(SMALL, 8) == [12, 13]
    assert pool.take(SMALL, 8) == []
    assert set(segment.states) == {SlotPhase.WRITING}


def test_slots_are_numbered_by_segment() -> None:
    """A slot's number leads to its segment and its index."""
    pool = SlotPool(SEGMENT_BYTES, 3)
    segment = cut(pool, 2, SMALL)
    first, second = pool.take(SMALL, 2)
    assert pool.at(first) == (segment, 0)
    assert pool.at(second) == (segment, 1)
    assert pool.take(LARGE, 1) == []
    assert pool.sizes() == [SMALL]


def test_a_segment_that_is_not_cut_is_spare() -> None:
    """The first of them; for a page that fits none there is none."""
    pool = SlotPool(SEGMENT_BYTES, 2)
    assert pool.spare(TOO_LARGE) is None
    assert pool.over_share(TOO_LARGE) is None
    cut(pool, 0, SMALL)
    assert pool.spare(SMALL) == 1
    cut(pool, 1, SMALL)
    assert pool.spare(SMALL) is None


def test_an_empty_segment_of_another_size_is_spare() -> None:
    """One with a page in it, whatever it is at, is not."""
    pool = SlotPool(SEGMENT_BYTES, 1)
    segment = cut(pool, 0, SMALL)
    assert pool.spare(LARGE) == 0
    for state in (
        SlotPhase.WRITING,
        SlotPhase.CACHED,
        SlotPhase.LEAVING,
        SlotPhase.GONE,
    ):
        segment.move(3, state)
        assert pool.spare(LARGE) is None
    segment.move(3, SlotPhase.FREE)
    cut(pool, 0, LARGE)
    assert pool.sizes() == [LARGE]
    assert pool.available(SMALL) == 0


def test_a_size_takes_no_more_than_its_share() -> None:
    """The size with most segments gives its oldest; nobody falls below an equal share."""
    pool = SlotPool(SEGMENT_BYTES, 4)
    segments = [cut(pool, number, SMALL) for number in (2, 0, 1, 3)]
    for each in segments:
        fill(each)
    assert pool.over_share(SMALL) is None
    assert pool.over_share(LARGE) is segments[0]
    fill(cut(pool, 2, LARGE))
    assert pool.over_share(LARGE) is segments[1]
    fill(cut(pool, 0, LARGE))
    assert pool.over_share(LARGE) is None
    assert pool.over_share(SMALL) is None


def test_a_segment_where_something_moves_is_not_given_up() -> None:
    """Neither one that is written or left just now, nor one that is read."""
    pool = SlotPool(SEGMENT_BYTES, 2)
    first, second = cut(pool, 0, SMALL), cut(pool, 1, SMALL)
    first.move(0, SlotPhase.LEAVING)
    assert pool.over_share(LARGE) is second
    second.readers[3] = 1
    assert pool.over_share(LARGE) is None
