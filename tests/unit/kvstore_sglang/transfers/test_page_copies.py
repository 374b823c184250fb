"""Copies of pages between a device pool and slots."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvstore_client import DatedRun, PageRef
from kvstore_sglang.transfers.page_copies import PageCopies
from sglang_rig.pools import (
    DIM,
    FULL_LAYERS,
    HEADS,
    LAYERS,
    PAGE,
    WINDOW_LAYERS,
    page_of,
    plain_pages,
    plain_pool,
    slots_of,
    window_pages,
    window_pool,
    wipe,
)

PAGES, SLOTS = 8, 6
CPU = torch.device("cpu")
# Two runs that lie together on both sides, one that is torn apart by the pool, and a third extent.
NUMBERS = [2, 3, 6, 1, 7]
PLACES = [PageRef(4, 0), PageRef(4, 1), PageRef(4, 2), PageRef(9, 5), PageRef(9, 1)]
PAGE_BYTES = LAYERS * 2 * PAGE * HEADS * DIM * 4


@dataclass
class Memory:
    """Two extents of the store, and the runs whose page tables were filled."""

    extents: dict[int, torch.Tensor] = field(
        default_factory=lambda: {
            each: torch.full((SLOTS, LAYERS, 2, PAGE, HEADS, DIM), -1.0) for each in (4, 9)
        }
    )
    filled: list[DatedRun] = field(default_factory=list)

    def extent_tensor(self, extent_id: int) -> torch.Tensor:
        """Returns all slots of an extent; raises ``KeyError``."""
        return self.extents[extent_id]

    def fill_page_tables(self, runs: Sequence[DatedRun]) -> None:
        """Notes runs."""
        self.filled += runs


def test_pages_come_back_as_they_were() -> None:
    """Saved pages lie in their slots in the store's order, and load into other pages."""
    pool, memory = plain_pool(PAGES), Memory()
    before = [page_of(pool, number) for number in range(PAGES)]
    path, copies = plain_pages(pool).path, PageCopies(CPU, memory)
    runs = [DatedRun(4, range(3)), DatedRun(9, [5, 1])]
    assert copies.save(copies.transfer(path, slots_of(NUMBERS), [PLACES]), runs) == 5 * PAGE_BYTES
    assert memory.filled == runs
    for number, place in zip(NUMBERS, PLACES, strict=True):
        assert torch.equal(memory.extents[place.extent_id][place.slot], before[number])
    untouched = {(4, 3), (4, 4), (4, 5), (9, 0), (9, 2), (9, 3), (9, 4)}
    assert all((memory.extents[extent][slot] == -1).all() for extent, slot in untouched)
    wipe(pool)
    targets = [0, 4, 5, 2, 6]
    transfer = copies.transfer(path, slots_of(targets), [PLACES])
    assert sum(copies.load_layer(transfer, layer) for layer in range(LAYERS)) == 5 * PAGE_BYTES
    for target, number in zip(targets, NUMBERS, strict=True):
        assert torch.equal(page_of(pool, target), before[number])
    assert not any(page_of(pool, number).any() for number in (1, 3, 7))


def test_a_layer_is_copied_alone() -> None:
    """A forward that needs the first layer waits for no other one."""
    pool, memory = plain_pool(PAGES), Memory()
    wipe(pool)
    path, copies = plain_pages(pool).path, PageCopies(CPU, memory)
    copies.load_layer(copies.transfer(path, slots_of(NUMBERS), [PLACES]), 1)
    assert [bool(tensor.any()) for tensor in pool.k_buffer] == [False, True, False]
    assert [bool(tensor.any()) for tensor in pool.v_buffer] == [False, True, False]


def test_an_extent_that_is_not_mapped_is_no_memory() -> None:
    """The caller treats the error as a failed copy."""
    path, copies = plain_pages(plain_pool(PAGES)).path, PageCopies(CPU, Memory())
    with pytest.raises(KeyError):
        copies.transfer(path, slots_of([1]), [[PageRef(5, 0)]])
    with pytest.raises(ValueError, match="zip"):
        copies.transfer(path, slots_of([1, 2]), [[PageRef(4, 0)]])


def test_a_page_of_windows_comes_back_from_its_parts() -> None:
    """Its layers lie across slots, and each layer is loaded alone."""
    pool = window_pool(PAGES)
    pages = window_pages(pool)
    [windows] = pages.others.values()
    slot_bytes = pages.layout.page_bytes
    memory = Memory({4: torch.full((SLOTS, slot_bytes), 255, dtype=torch.uint8)})
    copies = PageCopies(CPU, memory)
    sliding = pool.swa_kv_pool
    before = [page_of(sliding, number) for number in range(PAGES)]
    parts = [[PageRef(4, part), PageRef(4, len(windows.groups) + part)] for part in (0, 1, 2)]
    assert len(windows.groups) == len(parts)
    page_bytes = before[0].numel() * before[0].element_size()
    transfer = copies.transfer(windows, slots_of([5, 2]), parts)
    assert copies.save(transfer, []) == 2 * page_bytes
    wipe(sliding)
    back = copies.transfer(windows, slots_of([1, 6]), parts)
    loaded = [copies.load_layer(back, layer) for layer in range(WINDOW_LAYERS)]
    assert sum(loaded) == 2 * page_bytes
    assert [count > 0 for count in loaded] == [layer not in FULL_LAYERS for layer in range(5)]
    assert torch.equal(page_of(sliding, 1), before[5])
    assert torch.equal(page_of(sliding, 6), before[2])
    with pytest.raises(ValueError, match="2 parts of pages have slots, not 3"):
        copies.transfer(windows, slots_of([5, 2]), parts[:2])


@given(st.permutations(range(PAGES)), st.permutations(range(2 * SLOTS)), st.integers(0, PAGES))
def test_any_order_of_pages_and_slots_comes_back(
    numbers: list[int], places: list[int], count: int
) -> None:
    """Each page lies in its slot, and returns to its place, however they are torn apart."""
    pool, memory = plain_pool(PAGES), Memory()
    before = [page_of(pool, number) for number in range(PAGES)]
    pages = [PageRef(4 + 5 * (place // SLOTS), place % SLOTS) for place in places[:count]]
    path, copies = plain_pages(pool).path, PageCopies(CPU, memory)
    transfer = copies.transfer(path, slots_of(numbers[:count]), [pages])
    copies.save(transfer, [])
    for number, page in zip(numbers[:count], pages, strict=True):
        assert torch.equal(memory.extents[page.extent_id][page.slot], before[number])
    wipe(pool)
    assert sum(copies.load_layer(transfer, layer) for layer in range(LAYERS)) == count * PAGE_BYTES
    for number in range(PAGES):
        loaded = number in numbers[:count]
        assert torch.equal(page_of(pool, number), before[number]) or not loaded
        assert loaded or not page_of(pool, number).any()
