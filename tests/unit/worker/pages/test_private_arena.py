"""The private arena allocates each slot once, and all slots of a request or none."""

import pytest

from inference_worker.errors import ArenaExhaustedError
from inference_worker.pages.layout import PageLayout, PageRef
from inference_worker.pages.pool import PagePool
from inference_worker.pages.private_arena import PRIVATE_EXTENT, PrivateArena

LAYOUT = PageLayout(1, 1, 2, "float32", 4)


def test_it_holds_a_sequence_of_the_longest_length() -> None:
    """The arena has room for the last page even if it is partial."""
    arena = PrivateArena(LAYOUT, 17)
    assert (arena.slot_count, arena.used_count) == (5, 0)
    PagePool(LAYOUT).add_extent(PRIVATE_EXTENT, arena.tensor)


def test_slots_are_handed_out_once_and_lowest_first() -> None:
    """Released slots are allocated again in the same order."""
    arena = PrivateArena(LAYOUT, 16)
    first = arena.allocate(3)
    assert first == [PageRef(PRIVATE_EXTENT, slot) for slot in (0, 1, 2)]
    arena.release([first[2], first[0]])
    assert arena.used_count == 1
    assert [page.slot for page in arena.allocate(3)] == [0, 2, 3]


def test_too_many_slots_take_none() -> None:
    """An allocation that fails takes no slot."""
    arena = PrivateArena(LAYOUT, 16)
    arena.allocate(2)
    with pytest.raises(ArenaExhaustedError) as caught:
        arena.allocate(3)
    assert (caught.value.wanted, caught.value.left) == (3, 2)
    assert len(arena.allocate(2)) == 2


def test_a_slot_is_released_once() -> None:
    """A page released twice, never allocated or of another extent raises without a change."""
    arena = PrivateArena(LAYOUT, 16)
    pages = arena.allocate(2)
    for wrong in (PageRef(PRIVATE_EXTENT, 3), PageRef(0, 0), pages[0]):
        with pytest.raises(ValueError, match="allocated"):
            arena.release([pages[0], wrong])
    assert arena.used_count == 2


def test_an_empty_arena_is_refused() -> None:
    """An arena without room for a token is refused."""
    with pytest.raises(ValueError, match="token"):
        PrivateArena(LAYOUT, 0)
