"""The copier moves blocks to slots and back as raw bytes."""

from dataclasses import dataclass, field

import pytest
import torch

from kvstore_client import DatedRun
from kvstore_client.engines.stretches import stretches
from kvstore_vllm.blocks.block_copier import BlockCopier, planes_of
from kvstore_vllm.blocks.block_geometry import pieces_of
from kvstore_vllm.step_plan import BlockTransfer, runs_between

BLOCKS, SLOTS = 12, 10


@dataclass
class Tensor:
    """The fields of vLLM's ``KVCacheTensor`` that the tests use."""

    layers: list[str]
    layer_stride: int
    block_stride: int
    offset: int = 0


@dataclass
class Memory:
    """A memory of two extents."""

    page_bytes: int
    extents: dict[int, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = (SLOTS, self.page_bytes)
        self.extents = {each: torch.zeros(shape, dtype=torch.uint8) for each in (3, 4)}

    def extent_tensor(self, extent_id: int) -> torch.Tensor:
        """Returns one of the extents."""
        return self.extents[extent_id]


def layer_first(page: int) -> tuple[list[Tensor], dict[str, torch.Tensor]]:
    """Two layers, one after the other, in one allocation."""
    raw = torch.randint(0, 255, (2 * BLOCKS * page,), dtype=torch.uint8)
    layers = raw.view(2, BLOCKS, page)
    return [Tensor(["a", "b"], BLOCKS * page, page)], {"a": layers[0], "b": layers[1]}


def block_first(page: int) -> tuple[list[Tensor], dict[str, torch.Tensor]]:
    """Two layers in each block, each registered on its own."""
    raw = torch.randint(0, 255, (BLOCKS * 2 * page,), dtype=torch.uint8)
    layers = raw.view(BLOCKS, 2, page)
    tensors = [Tensor(["a"], page, 2 * page), Tensor(["b"], page, 2 * page, page)]
    return tensors, {"a": layers[:, 0], "b": layers[:, 1]}


def heads_first(page: int) -> tuple[list[Tensor], dict[str, torch.Tensor]]:
    """One layer of two heads, each with all its blocks."""
    raw = torch.randint(0, 255, (2 * BLOCKS * page,), dtype=torch.uint8)
    return [Tensor(["a"], 2 * BLOCKS * page, page)], {"a": raw.view(2, BLOCKS, page)}


TRANSFER = BlockTransfer(1, "r", (2, 3, 4, 9, 1), (DatedRun(3, range(5, 8)), DatedRun(4, [6, 2])))


@pytest.mark.parametrize("page", [64, 13], ids=["wide", "odd"])
@pytest.mark.parametrize("layout", [layer_first, block_first, heads_first])
@pytest.mark.parametrize(("rank", "beside"), [(0, False), (1, False), (1, True)])
def test_saved_and_loaded_is_what_it_was(
    layout: object, page: int, rank: int, *, beside: bool
) -> None:
    """Every byte of a block is loaded again, into other blocks too. No byte beside it changes."""
    tensors, caches = layout(page)  # type: ignore[operator]
    pieces = pieces_of(tensors, BLOCKS)
    copier = BlockCopier(planes_of(pieces, caches), rank)
    assert copier.rank_bytes == 2 * page
    memory = Memory(2 * copier.rank_bytes)
    before = {name: cache.clone() for name, cache in caches.items()}
    assert copier.save(memory, TRANSFER) == 5 * copier.rank_bytes
    part = slice(rank * copier.rank_bytes, (rank + 1) * copier.rank_bytes)
    written = [(3, 5), (3, 6), (3, 7), (4, 6), (4, 2)]
    for extent, tensor in memory.extents.items():
        for slot in range(SLOTS):
            assert bool(tensor[slot, part].any()) == ((extent, slot) in written)
        other = slice(copier.rank_bytes * (1 - rank), copier.rank_bytes * (2 - rank))
        assert not tensor[:, other].any()
    for cache in caches.values():
        cache.zero_()
    moved = BlockTransfer(2, "r", (7, 8, 0, 11, 5), TRANSFER.runs)
    assert copier.load(memory, moved, beside=beside) == 5 * copier.rank_bytes
    blocks_at = 1 if layout is heads_first else 0
    for name, cache in caches.items():
        for block in range(BLOCKS):
            now = cache.select(blocks_at, block)
            if block in moved.block_ids:
                source = TRANSFER.block_ids[moved.block_ids.index(block)]
                assert torch.equal(now, before[name].select(blocks_at, source))
            else:
                assert not now.any()


def test_a_transfer_is_as_few_copies_as_can_be() -> None:
    """A transfer has one copy for each run that is contiguous on both sides."""
    found = stretches(TRANSFER.block_ids, TRANSFER.places)
    assert [each[:] for each in found] == [(3, 5, 2, 3), (4, 6, 9, 1), (4, 2, 1, 1)]


def test_an_extent_that_is_not_mapped_is_no_memory() -> None:
    """An extent that is not mapped raises KeyError, which the caller treats as a failed copy."""
    tensors, caches = layer_first(8)
    copier = BlockCopier(planes_of(pieces_of(tensors, BLOCKS), caches))
    with pytest.raises(KeyError):
        copier.load(Memory(16), BlockTransfer(1, "r", (1,), (DatedRun(9, [0]),)))


def test_memory_that_lies_elsewhere_is_refused() -> None:
    """Memory that differs from vLLM's configuration is refused."""
    tensors, caches = layer_first(8)
    pieces = pieces_of(tensors, BLOCKS)
    with pytest.raises(ValueError, match="does not lie where"):
        planes_of(pieces, {"a": caches["b"], "b": caches["a"]})
    short = {name: cache[: BLOCKS // 2].clone() for name, cache in caches.items()}
    with pytest.raises(ValueError, match=r"does not lie where|hold no 12 blocks"):
        planes_of(pieces, short)
    with pytest.raises(ValueError, match="nothing to copy"):
        BlockCopier([])


def test_runs_are_cut_by_page() -> None:
    """A cut run keeps its range or list, and each slot keeps its generation."""
    runs = [DatedRun(1, range(10, 14), (7, 7, 8, 7)), DatedRun(2, [5, 3], (1, 2))]
    assert runs_between(runs, 2, 5) == (
        DatedRun(1, range(12, 14), (8, 7)),
        DatedRun(2, [5], (1,)),
    )
    assert runs_between(runs, 0, 0) == ()
    assert runs_between(runs, 4, 9) == (DatedRun(2, [5, 3], (1, 2)),)
