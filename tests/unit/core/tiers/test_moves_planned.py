"""Copies in two tiers: which move when, and who is handed which."""

import pytest

from core.core_builders import NAMESPACE_ID, OWNER, CoreWorld, node_at, paged
from core.tiered_world import make, move, sunk, tiers
from kvstore.core.eviction.leaf_order import LeafOrder
from kvstore.core.eviction.protocol import EvictionPolicy, Victim
from kvstore.core.invariants.invariant import InvariantBroken
from kvstore.core.pool.pages import evict
from kvstore.core.pool.placement import FIRST, LOWER, end_of_other, extended, tier_at
from kvstore.core.pool.tier_policy import TierPolicy, WantedMoves, WritePolicy
from kvstore.core.values.requests import MatchOptions, NamedPinRequest


def test_pages_go_down_and_are_read_in_place() -> None:
    """A nominated page is copied, then dropped; a match then answers tier 2, and so does peek."""
    world = sunk("abcd")
    assert world.cache.counters.demoted_page_count == 4
    assert world.cache.counters.evicted_page_count == 0
    tokens = paged("abcd") + b"last"
    assert world.cache.peek(
        world.worker.caller.identity, NAMESPACE_ID, tokens, world.now
    ).tiers == ((2, 4),)
    assert tiers(world.worker.match("abcd", 1)) == [(2, 4)]
    world.laws.check()


def test_the_second_read_in_place_promotes() -> None:
    """As far as slots are left above the mark."""
    world = sunk("abcd")
    world.cache.state.wanted = WantedMoves(TierPolicy(low=0.5, high=0.5))
    for pin_id in (1, 2):
        assert tiers(world.worker.match("abcd", pin_id)) == [(2, 4)]
        world.worker.release(pin_id)
        world.cache.finish_moves(world.cache.plan_moves(3))
    world.cache.finish_moves(world.cache.plan_moves(3))
    assert world.cache.counters.promoted_page_count == 4
    assert tiers(world.worker.match("abcd", 3)) == [(1, 4)]
    world.laws.check()


def test_without_room_nothing_is_promoted_and_room_is_made() -> None:
    """Reads alone make room for what they want."""
    world = sunk("abcd")
    for pin_id in (1, 2):
        world.worker.match("abcd", pin_id)
        world.worker.release(pin_id)
    assert world.cache.plan_moves(10) == []
    assert world.cache.moves_wanted()


def test_what_follows_pages_of_tier_2_is_in_tier_1() -> None:
    """A path of both tiers has two anchors, goes on in tier 1, and cannot lose its beginning."""
    world = sunk("ab")
    worker = world.worker
    match, grant = worker.acquire("abcd", 1, 2)
    assert (tiers(match), grant is not None) == ([(2, 2)], True)
    worker.insert(2, "c", 2, base_pin_id=1)
    inserted = worker.insert(2, "d", 3)
    assert [run.tier for run in inserted.runs] == [1]
    worker.release(1)
    world.laws.check()
    [hold] = worker.lease.reservations.values()
    [anchor] = hold.anchors
    assert (anchor.tier, anchor.other and anchor.other.tier) == (1, 2)
    assert tiers(worker.match("abcd", 3)) == [(2, 2), (1, 2)]
    assert world.evict_prefix("abc") == (0, 2)
    world.laws.check()
    worker.release(3)
    worker.abort(2)
    world.laws.check()


def test_a_duplicate_of_tier_2_is_answered_there() -> None:
    """An insert of a page in tier 2 alone answers that copy; its own slot stays reserved."""
    world = sunk("ab")
    world.worker.reserve(1, 3)
    inserted = world.worker.insert(1, "abc")
    assert [(run.tier, len(run.indexes)) for run in inserted.runs] == [(2, 2), (1, 1)]
    assert inserted.published_page_count == 1
    world.laws.check()


@pytest.mark.parametrize("write", [WritePolicy.THROUGH, WritePolicy.THROUGH_SELECTIVE])
def test_written_through(write: WritePolicy) -> None:
    """Pages are copied as they are inserted, or as they are matched, and stay in tier 1 too."""
    world = make(write=write, low=0.0)
    world.worker.publish("abc")
    assert move(world) == (3 if write is WritePolicy.THROUGH else 0)
    for pin_id in (1, 2):
        world.worker.match("abc", pin_id)
        move(world)
    node = node_at(world.namespace.index, "abc")
    assert (node.copy_count, node.lower_count) == (3, 3)
    assert world.cache.counters.demoted_page_count == 3


def test_used_once_is_not_copied_for_room() -> None:
    """Selective: room is made by what has a copy, and by nothing else."""
    world = make(write=WritePolicy.THROUGH_SELECTIVE)
    world.worker.publish("abc")
    assert world.cache.state.wanted is not None
    world.cache.state.wanted.pressed[world.arena] = None
    assert move(world) == 0
    assert world.states() == {"FREE": 5, "CACHED": 3}


def test_tier_2_makes_room_by_its_own_policy() -> None:
    """The least recently used leaf of tier 2 goes, its last copy with it."""
    world = make(lower_slots=4)
    for letters in ("ab", "cd", "ef"):
        world.worker.publish(letters)
        move(world)
    assert world.cache.counters.evicted_page_count == 2
    found = [world.worker.match(each, n).runs for n, each in enumerate(("ab", "cd", "ef"), 1)]
    assert [bool(runs) for runs in found] == [False, True, True]
    world.laws.check()


def test_what_finds_no_room_in_tier_2_stays() -> None:
    """With all of tier 2 held nothing moves, and nothing waits for it."""
    world = sunk("ab", lower_slots=2)
    world.worker.match("ab", 1)
    world.worker.publish("cd")
    assert move(world) == 0
    assert not world.cache.moves
    assert tiers(world.worker.match("cd", 2)) == [(1, 2)]


def test_not_handed_out_in_place() -> None:
    """Processes are owed no tier-2 memory if leases may not use it, and match less."""
    world = sunk("abcd", in_place=False)
    assert world.cache.extents_owed(world.worker.process_id) == []
    options = MatchOptions(1)
    sequence = world.worker.sequence("abcd")
    match = world.cache.match(world.worker.caller, NAMESPACE_ID, sequence, options, world.now)
    assert match.runs == ()


def test_nodes_part_and_join_with_their_copies() -> None:
    """Each part has its own in both tiers; one again when nothing tells them apart."""
    world = sunk("abcd")
    world.worker.publish("abx")
    move(world)
    index = world.namespace.index
    upper = node_at(index, "ab")
    assert upper.lower is not None
    assert (upper.lower.start, upper.lower.last_use, upper.lower.hits) == (0, upper.last_use, 1)
    assert upper.lower.child_count == 2
    world.evict_prefix("abx")
    world.laws.check()
    assert node_at(index, "ab") is node_at(index, "abcd")
    assert node_at(index, "abcd").lower_count == 4


def test_named_pins_hold_copies_of_both_tiers() -> None:
    """One that reaches into what is removed ends, with both of its anchors."""
    world = sunk("ab")
    world.worker.publish("abcd")
    world.cache.pin_prefix(OWNER, NAMESPACE_ID, NamedPinRequest("p", paged("abcd")), world.now)
    world.laws.check()
    assert world.evict_prefix("a") == (4, 0)
    assert not world.cache.state.named_pins.of(world.namespace)
    world.laws.check()


def test_a_count_that_is_wrong_breaks_a_law() -> None:
    """Children in tiers are counted."""
    for name in ("bare", "missing"):
        world = sunk("ab")
        node = node_at(world.namespace.index, "ab")
        setattr(node, name, 7)
        with pytest.raises(InvariantBroken):
            world.laws.check()


def test_runs_of_tiers() -> None:
    """Runs are joined where they are of one tier, and None stands for tier 1 alone."""
    assert extended(None, 3, 5, FIRST) is None
    mixed = extended(extended(None, 2, 4, LOWER), 4, 6, LOWER)
    assert mixed == ((2, FIRST), (6, LOWER))
    assert (tier_at(mixed, 2), tier_at(mixed, 3)) == (FIRST, LOWER)
    assert (end_of_other(mixed, 5), end_of_other(mixed, 1)) == (2, 0)
    assert extended(mixed, 2, 2, LOWER) is None


def test_a_node_that_grows_has_its_new_pages_in_tier_1_alone() -> None:
    """Pages without a copy are gone after an eviction; the others lose that of tier 1."""
    world = make(write=WritePolicy.THROUGH, low=0.0)
    world.worker.publish("ab")
    move(world)
    world.worker.publish("abcd", "abx")
    node = node_at(world.namespace.index, "abcd")
    assert (node.lower, node.copy_count) == (None, 2)
    world.worker.publish("xy")
    world.laws.check()
    single = make(write=WritePolicy.THROUGH, low=0.0)
    single.worker.publish("ab")
    move(single)
    single.worker.publish("abcd")
    assert single.cache.arenas[LOWER].policy.nominate(3) == []
    single.worker.reserve(1, 7)
    single.laws.check()
    assert single.cache.counters.evicted_page_count == 2
    assert tiers(single.worker.match("abcd", 2)) == [(1, 1), (2, 1)]


def test_what_went_before_the_mover_came_is_not_copied() -> None:
    """A node that was evicted or removed is passed over."""
    world = make(write=WritePolicy.THROUGH, low=0.0)
    world.worker.publish("ab")
    world.worker.reserve(1, 8)
    assert move(world) == 0
    world.worker.abort(1)
    world.worker.publish("cd")
    world.evict_prefix("c")
    assert move(world) == 0


def test_a_leaf_of_tier_2_goes_and_its_parent_may_be_one() -> None:
    """Children in tier 2 are counted as they go; what is no leaf by its turn is passed over."""
    world = make(lower_slots=5)
    world.worker.publish("abc", "abd")
    move(world)
    world.worker.publish("xy")
    move(world)
    assert world.cache.counters.evicted_page_count == 1
    parent = node_at(world.namespace.index, "ab")
    assert evict([Victim(parent, 1)]) == 0
    world.laws.check()


def test_what_continued_copies_in_tier_2_is_removed_and_they_may_go() -> None:
    """The node above is then a leaf of tier 2, though tier 1 has other continuations."""
    world = make(slots=8, lower_slots=2, write=WritePolicy.THROUGH, low=0.0, high=0.0)
    world.worker.publish("ab")
    move(world)
    world.cache.state.wanted = None
    world.worker.publish("ac", "ad")
    assert world.evict_prefix("ab") == (1, 0)
    world.laws.check()
    [leaf] = [victim.leaf for victim in world.cache.arenas[LOWER].policy.nominate(1)]
    assert leaf is node_at(world.namespace.index, "a").lower


def test_a_lease_reads_the_copy_that_it_has_mapped() -> None:
    """A match answers the copy in tier 2 if a process has not mapped tier 1's extent."""
    world = make(write=WritePolicy.THROUGH, low=0.0)
    world.worker.publish("ab")
    move(world)
    world.cache.unmapped(world.worker.process_id, [1])
    assert tiers(world.worker.match("ab", 1)) == [(2, 2)]
    world.laws.check()


def test_a_path_of_both_tiers_is_removed_whole() -> None:
    """Both anchors of its hold are in what is detached, and go with it."""
    world = sunk("ab")
    world.worker.acquire("abcd", 1, 2)
    world.worker.insert(2, "cd", 2, base_pin_id=1)
    assert world.evict_prefix("a") == (0, 4)
    world.laws.check()
    world.worker.abort(2)
    world.worker.release(1)
    world.laws.check()
    assert world.states() == {"FREE": 8}


def remembered(policy: EvictionPolicy) -> int:
    """Returns how many pages a policy knows to have had go."""
    assert isinstance(policy, LeafOrder)
    return sum(policy.ghosts.by_kind.values())


def test_the_last_tier_learns_from_what_was_gone() -> None:
    """Its order is told what it had go and what is published again; tier 1's, not."""
    world = make(lower_slots=4)
    lower = world.namespace.lower_arena
    assert lower is not None
    assert (world.arena.policy.spills, lower.policy.spills) == (True, False)
    assert not CoreWorld().arena.policy.spills
    world.worker.publish("ab", "cd")
    move(world)
    assert (remembered(world.arena.policy), remembered(lower.policy)) == (0, 0)
    world.worker.publish("ef")
    move(world)
    assert (remembered(world.arena.policy), remembered(lower.policy)) == (0, 2)
    world.worker.publish("ab")
    assert (remembered(world.arena.policy), remembered(lower.policy)) == (0, 0)
    assert world.cache.counters.returned_page_count == 2
    assert node_at(world.namespace.index, "ab").hint.returned
