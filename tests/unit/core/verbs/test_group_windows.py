"""Matches with KV cache groups: where they end, and what they hold."""

from itertools import product

import pytest

from core.core_builders import NAMESPACE_ID, OWNER, CoreWorld, paged, places
from kvstore.core.pool.tier_policy import TierPolicy, WritePolicy
from kvstore.core.tiers.moves import Move
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import (
    GroupInsert,
    GroupWindow,
    Match,
    MatchOptions,
    SlotMoves,
)
from kvstore.core.values.slots import SlotState
from kvstore.core.verbs.verify import Inspection
from kvstore.errors import IdReused, InvalidField, PoolExhausted, QuotaExceeded

FIVE = "abcde"


def ends(world: CoreWorld, match: Match) -> tuple[int, list[tuple[int, int]]]:
    """Returns the pages of a match, and the first page and the page count of each group."""
    groups = [(each.start_page, len(places(each.runs))) for each in match.groups]
    return match.matched_token_count // world.page_tokens, groups


def expected_end(pages: int, marks: dict[int, str], windows: dict[int, int], start: int) -> int:
    """Returns where a match ends, by a look at every end with every window."""
    for end in range(pages, 0, -1):
        whole = all(
            marks[group][page] == "1"
            for group, count in windows.items()
            for page in range(max(end - count if count else 0, start), end)
        )
        if whole:
            return end
    return 0


def test_a_match_ends_where_every_window_is_whole() -> None:
    """Whatever the holes, windows and start: the deepest such end, and the pages before it."""
    for one, two in product(("11111", "11011", "00111", "01010", "10000"), repeat=2):
        world = CoreWorld(slots=20)
        world.worker.publish_groups(FIVE, g1=one, g2=two)
        rows = enumerate(product((0, 1, 2, 4), (0, 1, 3, 9), (0, 1, 3, 5)), start=1)
        for pin_id, (first, second, start) in rows:
            windows = {1: first, 2: second}
            match = world.worker.match_groups(FIVE, pin_id, windows, start)
            end = expected_end(5, {1: one, 2: two}, windows, start)
            firsts = [max(end - (count or end), min(start, end)) for count in windows.values()]
            wanted = [(each, end - each) for each in firsts] if end else []
            assert ends(world, match) == (end, wanted), (one, two, windows, start)
            groups = tuple(GroupWindow(*each) for each in windows.items())
            tokens = paged(FIVE) + b"abcd"
            peeked = world.cache.peek(OWNER, NAMESPACE_ID, tokens, world.now, groups, start)
            assert peeked.page_count == end
            world.worker.release(pin_id)
        world.laws.check()


def test_a_match_inside_an_edge_has_no_group_pages() -> None:
    """A path that parts within a node ends where pages of groups are, or where none is needed."""
    world = CoreWorld(slots=20)
    world.worker.publish_groups(FIVE, g1="01000")
    assert ends(world, world.worker.match_groups("abcdx", 1, {1: 1})) == (2, [(1, 1)])
    assert ends(world, world.worker.match_groups("abcdx", 2, {1: 1}, 3)) == (3, [(3, 0)])
    assert ends(world, world.worker.match_groups("abcdx", 3, {1: 1}, 4)) == (4, [(4, 0)])
    assert ends(world, world.worker.match_groups("abcdx", 4, {1: 2})) == (0, [])
    world.laws.check()


def test_the_pin_holds_the_pages_of_groups() -> None:
    """Pinned pages of groups are not evicted, and others of the same path are."""
    world = CoreWorld(slots=8)
    world.worker.publish_groups("abc", g1="110", g2="111")
    match = world.worker.match_groups("abc", 1, {2: 1}, 0)
    assert ends(world, match) == (3, [(2, 1)])
    assert world.worker.match_groups("abc", 1, {2: 1}, 0) == match
    world.worker.reserve(70, 4)
    world.laws.check()
    assert ends(world, world.worker.match_groups("abc", 2, {2: 1}, 0)) == (3, [(2, 1)])
    assert ends(world, world.worker.match_groups("abc", 3, {1: 1}, 0)) == (0, [])
    world.worker.release(1, 2)
    world.worker.abort(70)
    world.worker.reserve(71, 8)
    assert world.states() == {"RESERVED": 8}
    world.laws.check()


def test_pinned_pages_of_groups_count_until_their_release() -> None:
    """A tenant whose pins hold as many as it may gets no more, and nothing is changed then."""
    world = CoreWorld(limits=Limits(max_held_group_pages=3))
    world.worker.publish_groups("abc", g1="111")
    world.worker.match_groups("abc", 1, {1: 2})
    counted = world.cache.counters.copy()
    with pytest.raises(QuotaExceeded, match="held_group_pages"):
        world.worker.match_groups("abc", 2, {1: 2})
    assert world.cache.counters == counted
    assert list(world.worker.lease.pins) == [1]
    world.laws.check()
    world.worker.match_groups("abc", 2, {1: 1})
    world.worker.match("abc", 3)
    world.worker.release(1)
    world.laws.check()
    world.worker.match_groups("abc", 4, {1: 2})
    world.laws.check()


def test_removed_pages_of_groups_stay_while_they_are_held() -> None:
    """A removed path is detached with the pages of groups that a pin has, until its release."""
    world = CoreWorld(slots=8)
    world.worker.publish_groups("abc", g1="111")
    match = world.worker.match_groups("abc", 1, {1: 1})
    world.evict_prefix("abc")
    world.laws.check()
    assert world.states() == {"FREE": 2, "CACHED": 4, "DETACHED": 2}
    [pin] = world.worker.lease.pins.values()
    assert (pin.detached_page_count, pin.page_count, pin.token_count) == (2, 4, 6)
    assert world.worker.match_groups("abc", 1, {1: 1}) == match
    world.worker.release(1)
    assert world.states() == {"FREE": 4, "CACHED": 4}
    world.laws.check()


def test_a_lease_that_dies_gives_the_pages_of_groups_back() -> None:
    """Its pins go with it, on cached and on detached pages."""
    world = CoreWorld(slots=8)
    world.worker.publish_groups("abc", g1="111")
    other = world.join("other")
    other.match_groups("abc", 1, {1: 2})
    world.evict_prefix("abc")
    world.cache.process_died(other.process_id, world.now)
    world.laws.check()
    assert world.states() == {"FREE": 4, "CACHED": 4}


def test_a_repeated_match_names_the_same_groups() -> None:
    """Other windows or another start under the same pin are another match."""
    world = CoreWorld(slots=8)
    world.worker.publish_groups("ab", g1="11")
    world.worker.match_groups("ab", 1, {1: 1})
    for windows, start in (({1: 2}, 0), ({1: 1}, 1), ({}, 0)):
        with pytest.raises(IdReused):
            world.worker.match_groups("ab", 1, windows, start)


@pytest.mark.parametrize("groups", [((0, 1),), ((1, 1), (1, 2))])
def test_windows_name_each_group_once(groups: tuple[tuple[int, int], ...]) -> None:
    """Group 0 is the path."""
    world = CoreWorld()
    windows = tuple(GroupWindow(*each) for each in groups)
    sequence, options = world.worker.sequence("a"), MatchOptions(1, groups=windows)
    with pytest.raises(InvalidField):
        world.cache.match(world.worker.caller, NAMESPACE_ID, sequence, options, world.now)
    with pytest.raises(InvalidField):
        world.cache.peek(OWNER, NAMESPACE_ID, sequence.tokens, world.now, windows)


def test_pages_of_one_token_have_no_groups() -> None:
    """They have no room for a marker."""
    world = CoreWorld(page_tokens=1)
    with pytest.raises(InvalidField):
        world.worker.match_groups("a", 1, {1: 1})


def test_a_match_without_groups_is_as_it_was() -> None:
    """Pages of groups change no path, and are no source pages."""
    world = CoreWorld(slots=16, divides_by_token=True)
    world.worker.publish_groups("abc", g1="111")
    match = world.worker.match("abcx", 1)
    assert (match.matched_token_count, match.groups) == (6, ())
    marked = world.worker.sequence("abc")
    marked = marked._replace(tokens=paged("abc") + b"\xff" * 4 + b"\1\0\0\0" + b"\xff" * 4)
    options = MatchOptions(2, 3)
    match = world.cache.match(world.worker.caller, NAMESPACE_ID, marked, options, world.now)
    assert (match.matched_token_count, match.source) == (6, None)
    world.worker.reserve(70, 5)
    with pytest.raises(InvalidField):
        world.cache.insert(world.worker.caller, 70, marked, world.now)
    world.laws.check()


def test_evicted_group_pages_let_the_path_merge() -> None:
    """Nodes that only pages of groups kept apart become one again."""
    world = CoreWorld(slots=6)
    world.worker.publish_groups("abc", g1="110")
    world.worker.match("abc", 1)
    world.worker.reserve(70, 3)
    world.worker.release(1)
    world.laws.check()
    assert world.shape() == {"abc": {}}


def test_an_unmapped_page_of_a_group_is_a_hole() -> None:
    """A worker gets only pages that all its processes have mapped."""
    world = CoreWorld(slots=4)
    world.worker.publish("ab")
    world.cache.add_extent(1, 9, 4)
    other = world.join("other")
    world.worker.map_memory()
    world.worker.reserve(50, 3)
    world.worker.match("ab", 1)
    groups = [GroupInsert(1, [0, 1], [0, 2])]
    world.worker.insert(60, "", 2, moves=SlotMoves(50, groups=groups), base_pin_id=1)
    world.worker.abort(50, 60)
    world.cache.unmapped(other.process_id, [9])
    assert ends(world, other.match_groups("ab", 1, {1: 1})) == (1, [(0, 1)])
    assert ends(world, world.worker.match_groups("ab", 2, {1: 1})) == (2, [(1, 1)])
    world.laws.check()


def corrupt_world(letters: str = "abc") -> CoreWorld:
    """Returns a world with a disk, a path and a page of group 1 at its page 1, with checksums."""
    world = CoreWorld(slots=16, page_stores=1)
    world.worker.reserve(50, 8)
    groups = [GroupInsert(1, [0, 1], [4, 5], [11, 12]), GroupInsert(2, [1], [6])]
    moves = SlotMoves(50, range(len(letters)), groups)
    world.worker.insert(60, letters, moves=moves)
    world.worker.abort(50, 60)
    return world


def inspect(world: CoreWorld, letters: str, pin_id: int) -> tuple[Match, Inspection]:
    """Matches with group 1 and reads every page that has a checksum."""
    options = MatchOptions(pin_id, groups=(GroupWindow(1, 1),))
    sequence = world.worker.sequence(letters)
    match, checks = world.cache.match_with_checks(
        world.worker.caller, NAMESPACE_ID, sequence, options, world.now, range
    )
    assert checks is not None
    return match, checks


def test_a_corrupt_page_of_a_group_is_not_answered() -> None:
    """It leaves the index with all that may have been computed on it, and the match ends before."""
    world = corrupt_world()
    match, checks = inspect(world, "abc", 1)
    assert ends(world, match) == (2, [(1, 1)])
    assert [(page.checksum, page.end) for page in checks.pages] == [(12, 3)]
    assert world.cache.remove_corrupt(checks, checks.pages, 1) == checks.pages
    world.laws.check()
    assert not world.cache.settle(checks, checks.pages)
    match, checks = inspect(world, "abc", 1)
    assert ends(world, match) == (1, [(0, 1)])
    assert world.cache.settle(checks, [])
    assert world.worker.match("abc", 2).matched_token_count == 4
    assert ends(world, world.worker.match_groups("abc", 3, {2: 1})) == (2, [(1, 1)])
    assert len(world.cache.take_removed()) == 1
    world.laws.check()


@pytest.mark.parametrize("gone", ["abc", "ab", "a"])
def test_a_corrupt_page_of_a_group_may_have_left_already(gone: str) -> None:
    """Pages that were inserted after it go, as far as its path is in the index."""
    world = corrupt_world()
    _, checks = inspect(world, "ab", 1)
    world.evict_prefix(gone)
    world.worker.publish("abcd")
    in_place = gone == "abc"
    assert world.cache.remove_corrupt(checks, checks.pages, 1) == checks.pages * in_place
    assert world.worker.match("abcd", 2).matched_token_count == 4
    world.laws.check()
    world.worker.release(1, 2)
    world.laws.check()


def test_a_corrupt_page_of_a_group_may_be_found_after_its_namespace_was_deleted() -> None:
    """Nothing of the namespace is left to remove."""
    world = corrupt_world()
    _, checks = inspect(world, "ab", 1)
    world.cache.delete_namespace(OWNER, NAMESPACE_ID)
    assert world.cache.remove_corrupt(checks, checks.pages, 1) == []
    world.laws.check()
    world.worker.release(1)
    world.laws.check()


def test_a_corrupt_page_of_a_group_needs_no_disk() -> None:
    """Without a disk it leaves the index alone; pages without a checksum are not read."""
    world = CoreWorld(slots=16)
    world.worker.reserve(50, 8)
    groups = [GroupInsert(1, [0, 1], [4, 5], [0, 12])]
    world.worker.insert(60, "ab", moves=SlotMoves(50, [0, 1], groups))
    world.worker.abort(50, 60)
    options = MatchOptions(1, groups=(GroupWindow(1, 2),))
    sequence = world.worker.sequence("ab")
    asked = (world.worker.caller, NAMESPACE_ID, sequence, options, world.now)
    _, checks = world.cache.match_with_checks(*asked, range)
    assert checks is not None
    assert [page.checksum for page in checks.pages] == [12]
    world.evict_prefix("ab")
    assert world.cache.remove_corrupt(checks, checks.pages, 1) == []
    world.cache.withdraw(checks)
    world.laws.check()


def test_a_released_page_of_a_group_may_be_evicted() -> None:
    """Also if its turn came while it was pinned."""
    world = CoreWorld(slots=4)
    world.worker.publish_groups("a", g1="1", g2="1")
    world.worker.match_groups("a", 1, {1: 1, 2: 1})
    with pytest.raises(PoolExhausted):
        world.worker.reserve(70, 3)
    world.laws.check()
    world.worker.release(1)
    world.laws.check()
    world.worker.reserve(71, 4)
    world.laws.check()


def test_a_corrupt_page_may_be_found_after_its_pin_was_released() -> None:
    """Then nobody knows what was computed on it."""
    world = corrupt_world()
    _, checks = inspect(world, "ab", 1)
    world.evict_prefix("a")
    world.worker.release(1)
    assert world.cache.remove_corrupt(checks, checks.pages, 1) == []
    world.laws.check()


def test_pages_of_groups_move_between_tiers() -> None:
    """They go to tier 2 with their path, are used in place there, and come back for a match."""
    policy = TierPolicy(write=WritePolicy.THROUGH, promote=True, low=0.0, high=0.0)
    world = CoreWorld(slots=6, tier_policy=policy, lower_slots=6)
    world.worker.publish_groups("ab", g1="11")
    carry_out(world, world.cache.plan_moves(10))
    world.worker.reserve(70, 6)
    assert world.states() == {"RESERVED": 6}
    match = world.worker.match_groups("ab", 1, {1: 2})
    assert ends(world, match) == (2, [(0, 2)])
    assert {run.tier for group in match.groups for run in group.runs} == {2}
    world.laws.check()
    world.worker.abort(70)
    options = MatchOptions(2, groups=(GroupWindow(1, 1),))
    asked = (world.worker.caller, NAMESPACE_ID, world.worker.sequence("ab"), options)
    carry_out(world, world.cache.plan_promotion(*asked, 10))
    world.laws.check()
    match = world.cache.match(*asked, world.now)
    assert [run.tier for group in match.groups for run in group.runs] == [1]
    assert world.arena.counts[SlotState.CACHED] == 3
    assert world.cache.plan_promotion(*asked, 10) == []
    world.worker.release(1, 2)
    world.laws.check()


def carry_out(world: CoreWorld, moves: list[Move]) -> None:
    """Finishes moves as if their pages were copied."""
    world.cache.finish_moves(moves)
    world.laws.check()
