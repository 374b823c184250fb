"""Moves between tiers that others overtook."""

from core_builders import CoreWorld
from tiered_world import make, sunk

from kvstore.core.moving import Move
from kvstore.core.slots import SlotState
from kvstore.core.tiers import LOWER


def begun(world: CoreWorld) -> Move:
    """Return the one move that is begun."""
    [move] = world.cache.plan_moves(10)
    world.laws.check()
    return move


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
    move = begun(world)
    assert world.evict_prefix("b") == (0, 0)
    assert world.evict_prefix("ab") == (0, 2)
    world.laws.check()
    assert world.cache.finish_moves([move]) == 1
    world.laws.check()
    assert world.states() == {"FREE": 7, "CACHED": 1}


def test_an_extent_that_retires_takes_no_copy() -> None:
    """A target in it is given back; and its pages leave the index with what continues them."""
    world = make()
    world.worker.publish("abc")
    move = begun(world)
    world.cache.retire_extent(2, 2)
    assert world.cache.finish_moves([move]) == 0
    world.laws.check()
    sink = sunk("abc")
    assert sink.cache.cheapest_extent(2, {2}) == 2
    assert sink.cache.retire_extent(2, 2).evicted_page_count == 3
    sink.laws.check()
