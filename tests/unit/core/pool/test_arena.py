"""An arena's slots across its extents, and their counts by state."""

from array import array
from collections.abc import Collection

import pytest

from core.core_builders import TENANT, make_arena
from kvstore.core.pool.arena import Arena
from kvstore.core.values.slots import INDEX_BITS, INDEX_MASK, ExtentSlots, Slots, SlotState
from kvstore.errors import PoolExhausted


def take(arena: Arena, count: int, extent_ids: Collection[int] = (1, 2, 3)) -> Slots:
    """Takes slots and returns them."""
    slots = array("Q")
    arena.take(count, extent_ids, into=slots)
    return slots


def named(slots: Slots) -> list[tuple[int, int]]:
    """Returns slots as (extent, index)."""
    return [(slot >> INDEX_BITS, slot & INDEX_MASK) for slot in slots]


def counted(arena: Arena) -> dict[SlotState, int]:
    """Counts the slots of each state in the extents themselves."""
    states = [state for extent in arena.extents.values() for state in extent.states]
    return {state: states.count(state) for state in SlotState}


def test_an_arena_is_its_tenants() -> None:
    """Tenant and bytes of a slot are those of the arena's key."""
    arena = make_arena(1)
    assert (arena.tenant, arena.slot_bytes) == (TENANT, 64)


def test_an_arena_without_extents_has_no_slots() -> None:
    """A new arena has no memory until an extent is added."""
    arena = make_arena()
    assert (arena.slot_count, arena.free_count) == (0, 0)
    with pytest.raises(PoolExhausted):
        take(arena, 1)


def test_an_arena_grows_by_extents() -> None:
    """An extent's slots are counted and can be taken from when it is added."""
    arena = make_arena(2)
    arena.add_extent(ExtentSlots(9, 3))
    assert (arena.slot_count, arena.free_count) == (5, 5)
    assert named(take(arena, 3, [9])) == [(9, 0), (9, 1), (9, 2)]


def test_earlier_extents_are_used_first() -> None:
    """Slots come from the first extent while it has any, then from the next."""
    arena = make_arena(2, 3)
    assert named(take(arena, 3)) == [(1, 0), (1, 1), (2, 0)]
    assert named(take(arena, 2)) == [(2, 1), (2, 2)]


def test_only_the_given_extents_are_used() -> None:
    """Slots of extents that were not named are not taken, though there are some."""
    arena = make_arena(2, 2, 2)
    assert named(take(arena, 3, {3, 1})) == [(1, 0), (1, 1), (3, 0)]
    with pytest.raises(PoolExhausted) as error:
        take(arena, 2, {3, 1})
    assert error.value.metadata == {"requested": "2", "available": "1"}


def test_a_take_that_fails_takes_nothing() -> None:
    """All slots stay FREE, and can still be taken, if there are too few for a request."""
    arena = make_arena(2, 2)
    slots = array("Q")
    with pytest.raises(PoolExhausted):
        arena.take(5, [1, 2], into=slots)
    assert not slots
    assert arena.free_count == 4
    assert len(take(arena, 4)) == 4


def test_no_slots_can_be_taken_of_a_full_arena() -> None:
    """Taking none succeeds, whatever is left."""
    arena = make_arena(1)
    take(arena, 1)
    assert not take(arena, 0)


def test_taken_slots_follow_those_there() -> None:
    """Slots are appended to what ``into`` held."""
    arena = make_arena(2)
    slots = array("Q", [77])
    arena.take(1, [1], into=slots)
    assert slots[0] == 77
    assert named(slots[1:]) == [(1, 0)]


def test_counts_follow_every_change() -> None:
    """After each way from state to state the counts are those of the extents."""
    arena = make_arena(3, 3)
    slots = take(arena, 5)
    assert counted(arena) == dict(zip(SlotState, arena.counts, strict=True))
    arena.change(slots[:4], SlotState.RESERVED, SlotState.CACHED)
    arena.change(slots[:2], SlotState.CACHED, SlotState.DETACHED)
    arena.change(slots[4:], SlotState.RESERVED, SlotState.QUARANTINED)
    assert counted(arena) == dict(zip(SlotState, arena.counts, strict=True))
    assert [arena.counts[state] for state in SlotState] == [1, 0, 2, 2, 0, 1]
    arena.recycle(slots[:2], SlotState.DETACHED)
    arena.recycle(slots[2:4], SlotState.CACHED)
    arena.recycle(slots[4:], SlotState.QUARANTINED)
    assert counted(arena) == dict(zip(SlotState, arena.counts, strict=True))
    assert arena.free_count == arena.slot_count == 6


def test_a_change_touches_its_slots_alone() -> None:
    """Slots that were not named keep their state and generation."""
    arena = make_arena(4)
    slots = take(arena, 3)
    arena.change(slots[1:2], SlotState.RESERVED, SlotState.CACHED)
    reserved = SlotState.RESERVED
    assert list(arena.extents[1].states) == [reserved, SlotState.CACHED, reserved, SlotState.FREE]
    arena.recycle(slots[1:2], SlotState.CACHED)
    assert list(arena.extents[1].generations) == [0, 1, 0, 0]


def test_recycled_slots_come_again_in_their_order() -> None:
    """A path given back whole is handed out in prefix order again."""
    arena = make_arena(4, 4)
    slots = take(arena, 6)
    arena.recycle(slots, SlotState.RESERVED)
    assert take(arena, 6) == slots
