"""Eviction from a full slab: leaves that nobody read for a turn."""

from itertools import islice

from kvstore.storage.slab.layout import layout_of
from kvstore.storage.slab.policy import WINDOW, SlabClock
from kvstore.storage.slab.segment import Segment, SlotPhase
from kvstore.storage.slab.superblock import SegmentHeader

PAGE_BYTES = 4096


class World:
    """Segments full of pages of which none comes after another, and a clock."""

    def __init__(self, count: int = 2) -> None:
        layout = layout_of(1 << 20, PAGE_BYTES)
        self.segments = [
            Segment(SegmentHeader(bytes(16), number, 1, PAGE_BYTES), layout)
            for number in range(count)
        ]
        self.slots = layout.slot_count
        self.clock = SlabClock()
        for segment in self.segments:
            for index in range(self.slots):
                segment.move(index, SlotPhase.CACHED)

    def chain(self, *indexes: int) -> None:
        """Makes each page of the first segment continue the one before."""
        for index in indexes[:-1]:
            self.segments[0].children[index] = 1

    def evict(self, count: int) -> list[tuple[int, int]]:
        """Drops up to ``count`` pages; returns the segments and indexes of their slots."""
        found = []
        for slot in islice(self.clock.nominate(self.segments), count):
            number, index = divmod(slot, 1 << 20)
            segment = self.segments[number]
            segment.move(index, SlotPhase.FREE)
            if index and segment.children[index - 1]:
                segment.children[index - 1] -= 1
            found.append((number, index))
        return found


def test_what_goes_lies_side_by_side() -> None:
    """The hand goes window by window, backwards in each, and goes on where it stood."""
    world = World()
    assert world.evict(3) == [(0, WINDOW - 1), (0, WINDOW - 2), (0, WINDOW - 3)]
    assert world.evict(WINDOW) == [
        *((0, index) for index in reversed(range(WINDOW - 3))),
        *((0, index) for index in reversed(range(2 * WINDOW - 3, 2 * WINDOW))),
    ]


def test_every_page_goes_in_the_end_and_none_twice() -> None:
    """A turn comes round all segments, then there is nothing left."""
    world = World()
    assert len(set(world.evict(10_000))) == 2 * world.slots
    assert world.evict(1) == []


def test_a_chain_goes_from_its_end() -> None:
    """A page that another comes after stays until that one went, in the same sweep."""
    world = World()
    world.chain(*range(WINDOW))
    assert world.evict(3) == [(0, WINDOW - 1), (0, WINDOW - 2), (0, WINDOW - 3)]


def test_a_chain_over_windows_takes_a_turn_for_each() -> None:
    """A page that became a leaf behind the hand goes in the next turn."""
    world = World(count=1)
    world.chain(*range(world.slots))
    assert [index for _, index in world.evict(10_000)] == list(reversed(range(world.slots)))


def test_what_was_read_is_spared_once() -> None:
    """A touched page goes a turn later than one that was not."""
    world = World(count=1)
    world.segments[0].touched[WINDOW - 1] = 1
    assert world.evict(1) == [(0, WINDOW - 2)]
    assert world.evict(10_000)[-1] == (0, WINDOW - 1)


def test_what_is_held_is_no_victim() -> None:
    """A page that is read, one on its way, and one with a child stay."""
    world = World(count=1)
    segment = world.segments[0]
    segment.readers[0] = 1
    segment.children[1] = 2
    segment.move(3, SlotPhase.WRITING)
    segment.move(4, SlotPhase.LEAVING)
    left = set(range(world.slots)) - {index for _, index in world.evict(10_000)}
    assert left == {0, 1, 3, 4}


def test_without_segments_nobody_goes() -> None:
    """There is nothing to nominate."""
    assert list(SlabClock().nominate([])) == []
