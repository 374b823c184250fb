"""Reads of pages of KV cache groups: what is located, and what is published."""

import pytest

from core.core_builders import NAMESPACE_ID, OWNER, CoreWorld, paged, places
from kvstore.core.pool.tier_policy import TierPolicy, WritePolicy
from kvstore.core.tiers.group_reads import GroupRead, LocatedGroups
from kvstore.core.tiers.read_slots import EvictionBound
from kvstore.core.values.page_hash import page_digests
from kvstore.core.values.requests import GroupWindow, MatchOptions
from kvstore.core.values.slots import SlotState
from kvstore.errors import PoolExhausted


def locate(world: CoreWorld, windows: dict[int, int], pin_id: int = 1) -> LocatedGroups:
    """Returns the pages that a match of ``abc`` lacks."""
    options = MatchOptions(pin_id, groups=tuple(GroupWindow(*each) for each in windows.items()))
    sequence = world.worker.sequence("abc")
    return world.cache.locate_groups(world.worker.caller, NAMESPACE_ID, sequence, options)


def begin(world: CoreWorld, located: LocatedGroups) -> GroupRead | None:
    """Begins to read them."""
    sequence = world.worker.sequence("abc")
    return world.cache.begin_group_read(world.worker.caller, NAMESPACE_ID, sequence, located)


def started(world: CoreWorld, windows: dict[int, int]) -> GroupRead:
    """Returns a read that has begun."""
    read = begin(world, locate(world, windows))
    assert read is not None
    world.laws.check()
    return read


def test_the_lacking_pages_of_windows_are_located() -> None:
    """From the end of the path upward, each once, and none for a match that was answered."""
    world = CoreWorld(slots=12, page_stores=1)
    world.worker.publish_groups("abc", g1="101", g2="010")
    located = locate(world, {1: 3, 2: 2})
    assert [page.end for page in located.pages] == [3, 2]
    assert len(set(located.page_digests())) == 2
    first = next(page_digests(world.namespace.digest, paged("a"), world.namespace.index.width))
    assert [name.segment for name in located.page_names()] == [first, first]
    assert locate(world, {1: 1}).pages == []
    assert begin(world, locate(world, {1: 1})) is None
    world.worker.match_groups("abc", 1, {1: 1})
    assert locate(world, {1: 3, 2: 2}).pages == []
    world.laws.check()


def test_more_pages_than_can_be_read_are_not_located() -> None:
    """A caller that names many groups on a long path costs no list of all their pages."""
    world = CoreWorld(slots=6, page_stores=1)
    world.worker.publish("abc")
    options = MatchOptions(1, groups=(GroupWindow(1, 0), GroupWindow(2, 0)))
    asked = (world.worker.caller, NAMESPACE_ID, world.worker.sequence("abc"), options)
    page_bytes = world.layout.page_bytes
    assert len(world.cache.locate_groups(*asked, 6 * page_bytes).pages) == 6
    assert world.cache.locate_groups(*asked, 6 * page_bytes - 1).pages == []
    more = options._replace(groups=(*options.groups, GroupWindow(3, 1)))
    assert world.cache.locate_groups(*asked[:3], more).pages == []


def test_what_was_read_is_published_where_it_is_missing() -> None:
    """Pages that somebody published meanwhile stay, and a short read publishes what is good."""
    policy = TierPolicy(write=WritePolicy.THROUGH)
    world = CoreWorld(slots=14, page_stores=1, tier_policy=policy, lower_slots=2)
    world.worker.publish("abc")
    read = started(world, {1: 3})
    world.worker.publish_groups("abc", g1="001")
    assert world.cache.finish_group_read(read, 2, [5, 6]) == 1
    world.laws.check()
    read = started(world, {1: 3})
    assert [page.end for page in read.lacking] == [1]
    assert world.cache.finish_group_read(read, 1, [7]) == 1
    world.laws.check()
    match = world.worker.match_groups("abc", 2, {1: 3})
    assert len(places(match.groups[0].runs)) == 3
    assert world.arena.counts[SlotState.MOVING] == 0


def test_a_page_is_read_once_at_a_time() -> None:
    """A caller that wants a page of a read under way gets that read, and locates anew after it."""
    world = CoreWorld(slots=14, page_stores=1)
    world.worker.publish("abc")
    read = started(world, {1: 2})
    assert begin(world, locate(world, {1: 2})) is read
    assert begin(world, locate(world, {1: 3, 2: 1})) is read
    other = started(world, {2: 1})
    assert other is not read
    assert world.arena.counts[SlotState.MOVING] == 3
    assert world.cache.finish_group_read(read, 2) == 2
    assert world.cache.finish_group_read(other, 1) == 1
    rest = started(world, {1: 3, 2: 1})
    assert [page.end for page in rest.lacking] == [1]
    assert world.cache.finish_group_read(rest, 0) == 0
    world.laws.check()


def test_a_read_holds_the_cached_pages_of_its_windows() -> None:
    """Without them the pages that it brings would be of no use."""
    world = CoreWorld(slots=8, page_stores=1)
    world.worker.publish_groups("abc", g1="101")
    read = started(world, {1: 3})
    world.worker.reserve(70, 2)
    world.laws.check()
    with pytest.raises(PoolExhausted):
        world.worker.reserve(71, 1)
    assert world.cache.finish_group_read(read, 1) == 1
    assert len(places(world.worker.match_groups("abc", 2, {1: 3}).groups[0].runs)) == 3
    world.laws.check()


def test_what_lacks_is_looked_for_again_when_a_read_begins() -> None:
    """Pages that were published since are not read, and nothing is if others were evicted."""
    world = CoreWorld(slots=10, page_stores=1)
    world.worker.publish("abc")
    located = locate(world, {1: 3})
    world.worker.publish_groups("abc", g1="010")
    read = begin(world, located)
    assert read is not None
    assert [page.end for page in read.lacking] == [3, 1]
    assert world.cache.finish_group_read(read, 0) == 0
    located = locate(world, {1: 3})
    world.worker.match("abc", 2)
    world.worker.reserve(70, 7)
    world.worker.abort(70)
    assert len(locate(world, {1: 3}).pages) == 3
    assert begin(world, located) is None
    world.laws.check()


def test_what_a_read_saves_is_located_too() -> None:
    """Without it the match ends where all windows are whole: the rest would be computed again."""
    world = CoreWorld(slots=12, page_stores=1)
    world.worker.publish_groups("abc", g1="110", g2="011")
    located = locate(world, {1: 1})
    assert (located.match_end, located.end) == (2, 3)
    located = locate(world, {1: 1, 2: 2})
    assert (located.match_end, located.end) == (0, 3)


def test_a_read_of_a_path_that_changed_publishes_nothing() -> None:
    """A path that left, a removal elsewhere, and an extent that retires end a read."""
    world = CoreWorld(slots=14, page_stores=1)
    world.worker.publish("abc", "x")
    read = started(world, {1: 1})
    world.evict_prefix("x")
    assert begin(world, locate(world, {1: 1})) is None
    assert world.cache.finish_group_read(read, 1, [5]) == 0
    world.cache.finish_removed(world.cache.take_removed())
    located = locate(world, {1: 1})
    world.evict_prefix("abc")
    world.cache.finish_removed(world.cache.take_removed())
    assert begin(world, located) is None
    read = started(world, {1: 1})
    world.cache.add_extent(1, 9, 4)
    world.cache.retire_extent(1, 1)
    assert world.cache.finish_group_read(read, 1, [5]) == 0
    world.laws.check()


def test_a_read_without_enough_slots_begins_nothing() -> None:
    """All pages are read, or none; the slots that there were are free again."""
    world = CoreWorld(slots=4, page_stores=1)
    world.worker.publish("abc")
    assert begin(world, locate(world, {1: 2})) is None
    world.laws.check()
    assert world.states() == {"FREE": 1, "CACHED": 3}


def test_pages_of_a_window_come_from_several_page_stores() -> None:
    """Each page has its own, and one that lacks a removal keeps all of them back."""
    world = CoreWorld(slots=12, page_stores=2)
    world.worker.publish("abc")
    located = locate(world, {1: 2})
    first, second = located.page_digests()
    asked = world.worker.caller, NAMESPACE_ID, world.worker.sequence("abc"), located
    read = world.cache.begin_group_read(*asked, {first: 1, second: 0})
    assert read is not None
    assert [page.number for page in read.pages] == [1, 0]
    assert world.cache.finish_group_read(read, 0) == 0
    world.cache.evict_prefix(OWNER, NAMESPACE_ID, paged("z"))
    world.cache.finish_removed(world.cache.take_removed(0), 0)
    assert world.cache.begin_group_read(*asked, {first: 1, second: 0}) is None
    read = world.cache.begin_group_read(*asked, {first: 0, second: 0})
    assert read is not None
    assert world.cache.finish_group_read(read, 2) == 2
    world.laws.check()


@pytest.mark.parametrize(("share", "fits"), [(1 / 4, False), (1 / 2, True)])
def test_a_careful_read_of_windows_is_whole_or_not_at_all(share: float, *, fits: bool) -> None:
    """It evicts a share of the arena at the most, and what it evicted stays FREE."""
    world = CoreWorld(slots=8, page_stores=1)
    world.worker.publish("abc")
    located = locate(world, {1: 3})
    world.worker.publish("pq", "rst")
    world.worker.match("abc", 5)
    asked = world.worker.caller, NAMESPACE_ID, world.worker.sequence("abc"), located
    read = world.cache.begin_group_read(*asked, bound=EvictionBound(share, 1 << 60))
    world.laws.check()
    assert (read is not None) == fits
    assert world.arena.bounded_count == (3 if fits else 0)
    if read is not None:
        assert world.cache.finish_group_read(read, 3) == 3
    assert world.arena.bounded_count == 0
    world.laws.check()
