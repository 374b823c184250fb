"""Copies by address: as few as can be, within bounds, and without memory beside them."""

import tracemalloc

import numpy as np
import pytest
import torch

from kvstore_client import DatedRun
from kvstore_client.memory.cuda import host_registration
from kvstore_vllm.blocks.block_copier import Plane
from kvstore_vllm.blocks.descriptor_copier import DescriptorCopier, Descriptors, submit_to_cpu
from kvstore_vllm.step_plan import BlockTransfer
from vllm_rig.block_layouts import slots
from vllm_rig.vllm_layouts import Kind, block_bytes, planes

KINDS = [Kind(layers=3, heads=2, tokens=4, value_bytes=8)]
SIZE = block_bytes(KINDS)
BLOCKS = SLOTS = 16


def copier(name: str, rank: int = 0) -> DescriptorCopier:
    """Returns a copier of some blocks in a layout."""
    raw = torch.zeros(BLOCKS * SIZE, dtype=torch.uint8)
    return DescriptorCopier(planes(name, KINDS, BLOCKS, raw), submit_to_cpu, rank)


def transfer(blocks: tuple[int, ...], places: tuple[int, ...] | range) -> BlockTransfer:
    """Returns a transfer between blocks and slots of the only extent."""
    return BlockTransfer(1, "r", blocks, (DatedRun(0, places),))


def described(name: str, rank_count: int = 1) -> Descriptors:
    """Returns the copies of four blocks in three runs."""
    memory = slots(SLOTS, rank_count * SIZE, "cpu")
    return copier(name).descriptors(memory, transfer((2, 3, 4, 9), (5, 6, 7, 8)))


@pytest.mark.parametrize(
    ("name", "rank_count", "sizes"),
    [
        ("BLNHC", 1, [3 * SIZE, SIZE]),
        ("BLHNC", 2, [SIZE] * 4),
        ("LBNHC", 1, [SIZE // 3] * 12),
        ("LHBNC", 1, [SIZE // 6] * 24),
    ],
)
def test_copies_that_follow_on_both_sides_are_one(
    name: str, rank_count: int, sizes: list[int]
) -> None:
    """A run of blocks is one copy if blocks come first and one rank fills the slots."""
    assert described(name, rank_count).sizes.tolist() == sizes


def test_no_copy_spans_two_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is cut where a registered piece of the store's memory ends."""
    monkeypatch.setattr(host_registration, "PIECE_BYTES", 1)
    memory = slots(SLOTS, 4096, "cpu")  # as long as a page of the kernel
    raw = torch.zeros((BLOCKS, 1, 4096), dtype=torch.uint8)
    found = DescriptorCopier([Plane(raw, 0)], submit_to_cpu)
    cut = found.descriptors(memory, transfer((2, 3, 4), range(5, 8)))
    assert cut.sizes.tolist() == [4096] * 3


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (transfer((BLOCKS,), (0,)), "block"),
        (transfer((-1,), (0,)), "block"),
        (transfer((0,), (SLOTS,)), "slot"),
        (transfer((0, 1), (0,)), "2 blocks have 1 slots"),
    ],
)
def test_nothing_outside_is_copied(wanted: BlockTransfer, error: str) -> None:
    """A block or slot that does not exist is an error before anything is copied."""
    with pytest.raises(IndexError, match=error):
        copier("BLNHC").load(slots(SLOTS, SIZE, "cpu"), wanted)
    with pytest.raises(IndexError, match="no part of this rank"):
        copier("BLNHC", rank=1).save(slots(SLOTS, SIZE, "cpu"), transfer((0,), (0,)))
    with pytest.raises(ValueError, match="nothing to copy"):
        DescriptorCopier([], submit_to_cpu)


def test_an_unknown_extent_is_an_error() -> None:
    """An extent that is not mapped raises KeyError, which the caller treats as a failed copy."""
    wanted = BlockTransfer(1, "r", (1,), (DatedRun(9, [0]),))
    with pytest.raises(KeyError):
        copier("BLNHC").load(slots(SLOTS, SIZE, "cpu"), wanted)


@pytest.mark.parametrize("name", ["LBNHC", "BLNHC"])
@pytest.mark.parametrize("to_blocks", [True, False], ids=["load", "save"])
def test_a_transfer_allocates_its_descriptors_alone(name: str, *, to_blocks: bool) -> None:
    """A transfer of 16 MiB allocates a few arrays of as many numbers as it has copies."""
    kinds = [Kind(layers=4, heads=1, tokens=64, value_bytes=1024)]
    count = 64
    raw = torch.zeros(count * block_bytes(kinds), dtype=torch.uint8)
    memory = slots(count, block_bytes(kinds), "cpu")
    submitted: list[int] = []

    def submit(
        sources: np.ndarray, targets: np.ndarray, sizes: np.ndarray, *, any_order: bool
    ) -> None:
        submitted.append(int(sizes.sum()))
        submit_to_cpu(sources, targets, sizes, any_order=any_order)

    found = DescriptorCopier(planes(name, kinds, count, raw), submit)
    wanted = transfer(tuple(range(count)), range(count))
    tracemalloc.start()
    try:
        (found.load if to_blocks else found.save)(memory, wanted)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert submitted == [raw.nbytes]
    # Before copies are merged there is one a layer and block. Each is some numbers of 8 bytes.
    assert peak < 64 * 8 * 4 * count
    assert peak < raw.nbytes // 100
