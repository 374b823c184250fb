"""The place of each page and the pages after it, in whatever order pages come and go."""

from itertools import permutations

from kvstore.storage.page_store import PageKey
from kvstore.storage.slab.header import SlotHeader
from kvstore.storage.slab.index import SlabIndex
from kvstore.storage.slab.layout import SegmentLayout
from kvstore.storage.slab.segment import Segment
from kvstore.storage.slab.superblock import SegmentHeader
from slab.rig import NAMESPACE, key

# A page, and the one before it.
PARENTS = {0: None, 1: 0, 2: 1, 3: 1, 4: None}


class World:
    """An index over one segment, page n in slot n."""

    def __init__(self) -> None:
        layout = SegmentLayout(1 << 20, 4096)
        self.segment = Segment(SegmentHeader(bytes(16), 0, 1, 4096), layout)
        self.index = SlabIndex({0: self.segment})

    def write_header(self, number: int, parent: int | None) -> None:
        """Writes into the table that a page is in slot ``number``."""
        above = NAMESPACE if parent is None else key(parent).digest
        self.segment.write_header(number, SlotHeader(key(number), above, 1, 1, 1))

    def add(self, number: int) -> None:
        """Adds a page of the tree."""
        self.write_header(number, PARENTS[number])
        self.index.add(key(number), self.segment.slot(number))

    @property
    def children(self) -> list[int]:
        """Returns the number of pages after each page."""
        return list(self.segment.children[:5])


def test_children_are_counted_in_any_order() -> None:
    """A child may come before its parent, and go after it."""
    for order in permutations(PARENTS):
        world = World()
        for number in order:
            world.add(number)
        assert world.index.page_count == 5
        assert world.children == [1, 2, 0, 0, 0]
        assert world.index.drop(key(1)) == 1
        assert world.children == [0, 0, 0, 0, 0]
        world.index.drop(key(3))
        world.add(1)
        assert world.children == [1, 1, 0, 0, 0]
        for number in order:
            world.index.drop(key(number))
        assert world.children == [0, 0, 0, 0, 0]
        assert world.index.page_count == 0
        assert world.index._waiting == {}
        assert world.index._namespaces == {}


def test_what_is_restored_counts_as_what_was_added() -> None:
    """After a restart the counts are those of before."""
    added, restored = World(), World()
    for number, parent in PARENTS.items():
        added.add(number)
        restored.write_header(number, parent)
        assert restored.index.restore(*key(number)[:2], number) is None
    restored.index.count_children()
    assert restored.children == added.children
    assert restored.index.page_count == 5
    assert restored.index.restore(*key(2)[:2], 9) == 2


def test_orphans_are_found_at_any_depth() -> None:
    """Pages that nothing leads to, and those below them, are orphans."""
    world = World()
    for number in (0, 2, 3, 4):
        world.add(number)
    assert sorted(world.index.orphans()) == sorted([key(2), key(3)])
    world.add(1)
    assert world.index.orphans() == []
    world.index.drop(key(0))
    assert sorted(world.index.orphans()) == sorted([key(1), key(2), key(3)])


def test_a_circle_of_parents_is_an_orphan() -> None:
    """Headers that make pages their own ancestors end no search, and lead nowhere."""
    world = World()
    for number, parent in ((0, 1), (1, 2), (2, 0)):
        world.write_header(number, parent)
        world.index.restore(*key(number)[:2], number)
    world.index.count_children()
    assert sorted(world.index.orphans()) == sorted([key(0), key(1), key(2)])


def test_what_comes_after_is_found_at_any_depth() -> None:
    """Pages below dropped ones, and those below others that are not here; nothing elsewhere."""
    world = World()
    for number in PARENTS:
        world.add(number)
    world.index.drop(key(1))
    assert sorted(world.index.after([key(1), key(4)])) == sorted([key(2), key(3)])
    assert sorted(world.index.after([key(4)])) == sorted([key(2), key(3)])
    assert world.index.after([key(4, bytes(32))]) == []
    world.index.drop_all([key(2), key(3)])
    assert world.index.after([key(1)]) == []
    world.index.drop(key(0))
    assert world.index.after([key(0)]) == []
    assert world.index.after([key(9)]) == []
    assert world.index.namespaces() == {NAMESPACE: 1}


def test_what_is_not_there_is_not_found() -> None:
    """Neither in a namespace that there is nor in one that there is not."""
    world = World()
    world.add(0)
    other = PageKey(bytes(32), key(0).digest)
    assert world.index.find(other) is None
    assert world.index.drop(other) is None
    assert world.index.find(key(1)) is None
    assert world.index.keys(bytes(32)) == []
    assert world.index.keys(NAMESPACE) == [key(0)]
    assert world.index.drop_all([key(0), key(1)]) == [0]
