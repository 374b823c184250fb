"""Moves between tiers that others overtook."""

from array import array

from core.core_builders import CoreWorld
from core.tiered_world import make, move, sunk
from kvstore.core.pool.placement import LOWER
from kvstore.core.tiers.moves import Move
from kvstore.core.values.slots import SlotState


def begun(world: CoreWorld) -> Move:
    """Returns the one move that is begun."""
    [started] = world.cache.plan_moves(10)
    world.laws.check()
    return started


def test_a_move_that_failed_leaves_nothing() -> None:
    """Its targets are given back, its sources let go."""
    world = make()
    world.worker.publish("abc")
    assert world.cache.finish_moves([begun(world)], copied=False) == 0
    lower = world.namespace.arena_in(LOWER)
    assert lower.counts[SlotState.FREE] == lower.slot_count
    world.laws.check()


def test_a_page_removed_while_it_moves_is_not_published() -> None:
    """It is detached until then, and goes at the end of the move."""
    world = make()
    world.worker.publish("abc")
    started = begun(world)
    assert world.evict_prefix("b") == (0, 0)
    assert world.evict_prefix("ab") == (0, 2)
    world.laws.check()
    assert world.cache.finish_moves([started]) == 1
    world.laws.check()
    assert world.states() == {"FREE": 7, "CACHED": 1}


def test_a_page_gets_its_copy_only_after_the_one_above_it() -> None:
    """Pages after one that the move lacks get none, and their targets are given back."""
    world = make()
    world.worker.publish("abcd")
    started = begun(world)
    lacking = started.transfers.pop(1)
    world.namespace.arena_in(LOWER).recycle(array("Q", [lacking.target]), SlotState.MOVING)
    world.cache.moving.discard(lacking.source)
    assert world.cache.finish_moves([started]) == 1
    world.laws.check()
    assert move(world) == 3


def test_an_extent_that_retires_takes_no_copy() -> None:
    """A target in it is given back; and its pages leave the index with what continues them."""
    world = make()
    world.worker.publish("abc")
    started = begun(world)
    world.cache.retire_extent(2, 2)
    assert world.cache.finish_moves([started]) == 0
    world.laws.check()
    sink = sunk("abc")
    assert sink.cache.cheapest_extent(2, {2}) == 2
    assert sink.cache.retire_extent(2, 2).evicted_page_count == 3
    sink.laws.check()


def test_a_checksum_travels_with_its_page() -> None:
    """Down and up again: a copy has its source's."""
    world = make()
    world.worker.reserve(1, 2)
    world.worker.insert(1, "ab", checksums=[17, 18])
    world.worker.abort(1)
    move(world)
    match = world.worker.match("ab", 2)
    [run] = match.runs
    assert run.tier == LOWER
    extent = world.namespace.extents[run.extent_id]
    assert [extent.checksums[index] for index in run.indexes] == [17, 18]


def test_a_page_of_tier_2_stays_while_tier_1_continues_it() -> None:
    """Its last copy does not go for another's room, however long ago it was used."""
    world = sunk("ab", lower_slots=2)
    world.worker.acquire("abcd", 1, 2)
    world.worker.insert(2, "cd", 2, base_pin_id=1)
    world.worker.abort(2)
    world.worker.release(1)
    world.worker.publish("xy")
    assert move(world) == 0
    assert len(world.worker.match("abcd", 3).runs) == 2
