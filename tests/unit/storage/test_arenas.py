"""A tier's memory within its budget."""

import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import torch

from kvstore.storage.arenas import OFFSET_UNIT, POISON, Arenas
from kvstore.storage.errors import BudgetExhausted, NotEnoughMemory
from kvstore.storage.host.host_memory import HostMemory

SLOT = 1024


@pytest.fixture
def arenas() -> Iterator[Arenas]:
    """Provides a budget of ten slots in extents of four."""
    with closing(
        Arenas(budget_bytes=10 * SLOT, extent_bytes=4 * SLOT + 100, source=HostMemory())
    ) as made:
        yield made


def test_extents_are_whole_slots_within_the_budget(arenas: Arenas) -> None:
    """Extents are rounded down to slots, and the last takes what the budget has left."""
    counts = [arenas.allocate(1, SLOT).shape.slot_count for _ in range(3)]
    assert counts == [4, 4, 2]
    assert arenas.allocated_bytes == 10 * SLOT


def test_a_spent_budget_gives_nothing(arenas: Arenas) -> None:
    """Without room for a slot nothing is allocated, and the numbers are named."""
    arenas.allocate(1, 10 * SLOT - 1)
    assert not arenas.has_room(SLOT)
    with pytest.raises(BudgetExhausted) as refused:
        arenas.allocate(2, SLOT)
    assert (refused.value.requested_bytes, refused.value.available_bytes) == (SLOT, 1)


def test_a_slot_is_read_and_poisoned_by_its_number(arenas: Arenas) -> None:
    """Core's number of a slot finds its extent and its place; of what is gone nothing is read."""
    arenas.allocate(1, SLOT)
    arenas.allocate(1, SLOT)
    slot = 2 << 32 | 3
    arenas.poison([slot, 9 << 32])
    page, other = arenas.read(slot), arenas.read(1 << 32 | 3)
    assert page is not None
    assert other is not None
    assert bytes(page) == bytes([POISON]) * SLOT
    assert not any(other)
    assert arenas.read(9 << 32) is None


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_poison_is_a_large_number_and_no_nan(kind: str) -> None:
    """A computation with it gives a result far off, and a mask removes it without a trace."""
    value = torch.full((4,), POISON, dtype=torch.uint8).view(getattr(torch, kind))
    assert torch.isfinite(value).all()
    assert (value.abs() > 100).all()


def test_a_slot_larger_than_an_extent_has_an_extent_of_its_own(arenas: Arenas) -> None:
    """Pages larger than the configured extent still get memory, one slot at a time."""
    assert arenas.slots_in_extent(5 * SLOT) == 1
    assert arenas.allocate(1, 5 * SLOT).shape.slot_count == 1


def test_extent_ids_are_never_used_again(tmp_path: Path) -> None:
    """Ids count on over arenas and over allocations that failed."""
    (tmp_path / "proc").mkdir()
    meminfo = tmp_path / "proc/meminfo"
    sizes = Arenas(budget_bytes=100 * SLOT, extent_bytes=SLOT, source=HostMemory(tmp_path))
    with closing(sizes) as arenas:
        first = arenas.allocate(1, SLOT)
        meminfo.write_text("MemAvailable: 0 kB\n", encoding="utf-8")
        with pytest.raises(NotEnoughMemory):
            arenas.allocate(2, SLOT)
        meminfo.unlink()
        third = arenas.allocate(2, SLOT)
    assert (first.shape.extent_id, third.shape.extent_id) == (1, 3)
    assert third.shape.arena_id == 2


def test_a_failed_allocation_gives_its_bytes_back(tmp_path: Path) -> None:
    """The budget after a refusal is what it was before."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 0 kB\n", encoding="utf-8")
    arenas = Arenas(budget_bytes=10 * SLOT, extent_bytes=SLOT, source=HostMemory(tmp_path))
    with pytest.raises(NotEnoughMemory):
        arenas.allocate(1, SLOT)
    assert arenas.allocated_bytes == 0


def test_extents_are_described_in_the_order_asked_for(arenas: Arenas) -> None:
    """A description has the extent's shape, and its own descriptor."""
    first, second = arenas.allocate(1, SLOT), arenas.allocate(1, SLOT)
    described = arenas.describe([second.shape.extent_id, first.shape.extent_id])
    assert [each.shape for each in described] == [second.shape, first.shape]
    assert len({each.export.descriptor for each in described}) == 2


def test_many_threads_share_one_budget(arenas: Arenas) -> None:
    """However many allocate at once, no more than the budget is given out."""

    def attempt(arena_id: int) -> int:
        try:
            return arenas.allocate(arena_id, SLOT).shape.slot_count
        except BudgetExhausted:
            return 0

    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(attempt, range(16)))
    assert sum(counts) == 10
    assert sorted(counts)[-3:] == [2, 4, 4]


def test_a_destroyed_extent_is_gone(arenas: Arenas) -> None:
    """Its bytes are the budget's again, nothing reaches them, and fresh memory is zero."""
    extent = arenas.allocate(1, SLOT)
    arenas.allocate(2, 6 * SLOT)
    first = extent.shape.extent_id
    arenas.poison([first << 32])
    assert arenas.destroy(first) == extent.shape
    assert arenas.allocated_bytes == 6 * SLOT
    assert arenas.read(first << 32) is None
    again = arenas.allocate(3, SLOT).shape
    assert again.extent_id != first
    assert bytes(arenas.read(again.extent_id << 32) or b"") == bytes(SLOT)


def test_a_destroyed_extent_lives_on_where_it_is_mapped(arenas: Arenas) -> None:
    """A process that maps it still reads it: no later extent gets its memory."""
    extent = arenas.allocate(1, SLOT)
    export = extent.describe().export
    with mmap.mmap(export.descriptor, export.size_bytes) as kept:
        kept[:4] = b"mine"
        arenas.destroy(extent.shape.extent_id)
        arenas.allocate(2, SLOT)
        assert kept[:4] == b"mine"


def test_closing_gives_everything_back(arenas: Arenas) -> None:
    """After closing nothing of the budget is in use."""
    arenas.allocate(1, SLOT)
    arenas.close()
    assert arenas.allocated_bytes == 0


def offset_of(arenas: Arenas, arena_id: int, slot_bytes: int = SLOT) -> int:
    """Allocates an extent and returns its place in its arena's range of addresses."""
    return arenas.allocate(arena_id, slot_bytes).shape.arena_offset


def test_extents_of_an_arena_lie_side_by_side(arenas: Arenas) -> None:
    """Each arena counts its offsets from 0, and every extent has room for the largest one."""
    assert [offset_of(arenas, each) for each in (1, 2, 1)] == [0, 0, OFFSET_UNIT]


@pytest.mark.parametrize(
    ("slot_bytes", "extent_bytes", "stride"),
    [
        (SLOT, 4 * SLOT, 2 << 20),
        (SLOT, (2 << 20) + SLOT, 4 << 20),
        # Whole slots and whole large pages: 9 x 16 KiB, and no common factor.
        (9 << 14, 3 * (9 << 14), 9 * (2 << 20)),
        (1001, 4000, 1001 * (2 << 20)),
        # A slot larger than an extent has one of its own.
        (3 << 20, SLOT, 6 << 20),
    ],
)
def test_offsets_are_whole_slots_and_whole_large_pages(
    slot_bytes: int, extent_bytes: int, stride: int
) -> None:
    """The stride is the least that keeps slots and large pages whole, and extents apart."""
    budget = 2 * max(extent_bytes, slot_bytes)
    sizes = Arenas(budget_bytes=budget, extent_bytes=extent_bytes, source=HostMemory())
    with closing(sizes) as arenas:
        shapes = [arenas.allocate(1, slot_bytes, max_slots=1).shape for _ in range(2)]
    assert [each.arena_offset for each in shapes] == [0, stride]
    assert stride % slot_bytes == stride % OFFSET_UNIT == 0
    assert stride >= min(extent_bytes, budget // 2) // slot_bytes * slot_bytes


def test_the_offset_of_a_destroyed_extent_is_used_again(arenas: Arenas) -> None:
    """The lowest free offset is taken, so an arena's range never grows beyond its extents."""
    first, second = (arenas.allocate(1, SLOT).shape for _ in range(2))
    arenas.destroy(first.extent_id)
    assert offset_of(arenas, 1) == first.arena_offset
    arenas.destroy(second.extent_id)
    assert offset_of(arenas, 1) == second.arena_offset


def test_a_failed_allocation_gives_its_offset_back(tmp_path: Path) -> None:
    """The extent after a refusal begins where the refused one would have begun."""
    (tmp_path / "proc").mkdir()
    meminfo = tmp_path / "proc/meminfo"
    meminfo.write_text("MemAvailable: 0 kB\n", encoding="utf-8")
    sizes = Arenas(budget_bytes=10 * SLOT, extent_bytes=SLOT, source=HostMemory(tmp_path))
    with closing(sizes) as arenas:
        with pytest.raises(NotEnoughMemory):
            arenas.allocate(1, SLOT)
        meminfo.unlink()
        assert offset_of(arenas, 1) == 0
