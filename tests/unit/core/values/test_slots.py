"""An extent's slots: their states, generations, and the order in which they are taken."""

from array import array

import pytest

from kvstore.core.values.slots import INDEX_BITS, INDEX_MASK, ExtentSlots, SlotState, mark, recycle


def test_fresh_slots_are_all_available() -> None:
    """A new extent's slots are FREE, all in generation 0."""
    extent = ExtentSlots(3, 4)
    assert list(extent.states) == [SlotState.FREE] * 4
    assert list(extent.generations) == [0] * 4
    assert sorted(extent.available) == [0, 1, 2, 3]


def test_fresh_slots_come_in_order() -> None:
    """Slots of a new extent are taken from the lowest index on."""
    extent = ExtentSlots(0, 5)
    assert list(extent.take(3)) == [0, 1, 2]
    assert list(extent.take(2)) == [3, 4]
    assert extent.available == []


@pytest.mark.parametrize("extent_id", [0, 1, 70_000, (1 << 32) - 1])
def test_a_slot_names_its_extent_and_index(extent_id: int) -> None:
    """From the one integer both can be read again."""
    slots = list(ExtentSlots(extent_id, 3).take(3))
    assert [slot >> INDEX_BITS for slot in slots] == [extent_id] * 3
    assert [slot & INDEX_MASK for slot in slots] == [0, 1, 2]


def test_what_is_taken_is_reserved_and_nothing_else() -> None:
    """Taking changes the state of the taken slots alone, and no generation."""
    extent = ExtentSlots(1, 3)
    list(extent.take(2))
    assert list(extent.states) == [SlotState.RESERVED, SlotState.RESERVED, SlotState.FREE]
    assert list(extent.generations) == [0, 0, 0]


def test_none_can_be_taken() -> None:
    """Taking no slots takes none."""
    extent = ExtentSlots(1, 2)
    assert list(extent.take(0)) == []
    assert len(extent.available) == 2


def test_a_slot_never_comes_back_under_its_old_generation() -> None:
    """Each way back to FREE adds one to the generation of that slot alone."""
    extent = ExtentSlots(1, 2)
    for generation in range(1, 4):
        slots = list(extent.take(1))
        index = slots[0] & INDEX_MASK
        recycle({1: extent}, slots)
        assert extent.generations[index] == generation
        assert extent.states[index] == SlotState.FREE
    assert sorted(extent.generations) == [0, 3]


def test_the_last_given_back_is_the_first_taken() -> None:
    """Slots are a stack: the warmest is used again first."""
    extent = ExtentSlots(0, 4)
    list(extent.take(4))
    for index in (2, 0):
        recycle({0: extent}, [index])
    assert list(extent.take(2)) == [0, 2]


def test_slots_of_many_extents_are_given_back_at_once() -> None:
    """Each goes to its own extent, without a checksum, and the first comes first again."""
    extents = {number: ExtentSlots(number, 3) for number in (1, 2)}
    slots = [slot for extent in extents.values() for slot in extent.take(3)]
    given = [slots[0], slots[4], slots[1], slots[5]]
    for extent in extents.values():
        extent.checksums[:] = array("Q", [9] * 3)
    recycle(extents, given)
    assert [list(each.generations) for each in extents.values()] == [[1, 1, 0], [0, 1, 1]]
    assert [list(each.checksums) for each in extents.values()] == [[0, 0, 9], [9, 0, 0]]
    assert [list(extents[1].take(2)), list(extents[2].take(2))] == [given[0::2], given[1::2]]


@pytest.mark.parametrize(
    "taken",
    [[0], [3, 4, 5], [0, 1, 2, 3, 4, 5, 6, 7], [2, 1, 0], [0, 2], [6, 7, 0], [7, 8], []],
    ids=str,
)
def test_slots_are_marked_whether_they_lie_in_order_or_not(taken: list[int]) -> None:
    """Only those given are in the new state, of whatever extents they are."""
    extents = {number: ExtentSlots(number, 8) for number in (1, 2)}
    slots = array("Q", ((1 + each // 8) << INDEX_BITS | each % 8 for each in taken))
    mark(extents, slots, SlotState.CACHED)
    states = bytes(extents[1].states) + bytes(extents[2].states)
    assert [number for number, each in enumerate(states) if each] == sorted(taken)
    assert {states[each] for each in taken} <= {SlotState.CACHED}


def test_a_state_fits_a_byte() -> None:
    """Every state can stand in the extent's array of bytes."""
    extent = ExtentSlots(0, 1)
    for state in SlotState:
        extent.states[0] = state
        assert SlotState(extent.states[0]) is state
