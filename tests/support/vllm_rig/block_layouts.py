"""An engine's blocks in vLLM's layouts, without vLLM, on any device.

A layout's name is vLLM's: L layers, B blocks, H heads, N tokens, C values. Sizes are bytes.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch

from kvstore_client import DatedRun, PageRef
from kvstore_client.memory.cuda.host_registration import host_registrar
from kvstore_client.memory.shared_memory import REQUIRED_SEALS, map_memory
from kvstore_vllm.blocks.block_copier import Plane, planes_of
from kvstore_vllm.blocks.block_geometry import pieces_of
from kvstore_vllm.step_plan import BlockTransfer
from wire.scripted_store import sealed_memfd

LAYERS = 4


@dataclass
class CacheTensor:
    """As ``KVCacheTensor``."""

    layers: list[str]
    layer_stride: int
    block_stride: int
    offset: int = 0


class Blocks(NamedTuple):
    """An allocation ``raw`` of ``[..]`` bytes, and ``by_block``, a view with the blocks first."""

    raw: torch.Tensor
    by_block: torch.Tensor
    planes: list[Plane]


def layer_first(block_count: int, block_bytes: int, device: str) -> Blocks:
    """``LBNHC``: all blocks of a layer, then those of the next, in one allocation."""
    part = block_bytes // LAYERS
    raw = torch.empty((LAYERS, block_count, part), dtype=torch.uint8, device=device)
    names = [f"layer {number}" for number in range(LAYERS)]
    tensors = [CacheTensor(names, block_count * part, part)]
    return _blocks(raw, raw.transpose(0, 1), tensors, dict(zip(names, raw, strict=True)))


def block_first(block_count: int, block_bytes: int, device: str) -> Blocks:
    """``BLNHC``: all layers of a block, then those of the next."""
    part = block_bytes // LAYERS
    raw = torch.empty((block_count, LAYERS, part), dtype=torch.uint8, device=device)
    names = [f"layer {number}" for number in range(LAYERS)]
    tensors = [
        CacheTensor([name], part, block_bytes, number * part) for number, name in enumerate(names)
    ]
    return _blocks(raw, raw, tensors, dict(zip(names, raw.transpose(0, 1), strict=True)))


def keys_first(block_count: int, block_bytes: int, device: str) -> Blocks:
    """``[2, blocks, ...]`` of one layer: the keys of all blocks, then the values of all."""
    part = block_bytes // 2
    raw = torch.empty((2, block_count, part), dtype=torch.uint8, device=device)
    tensors = [CacheTensor(["layer 0"], 2 * block_count * part, part)]
    return _blocks(raw, raw.transpose(0, 1), tensors, {"layer 0": raw})


# Blocks of each layout, by their number, their bytes, and their device.
Layout = Callable[[int, int, str], Blocks]
LAYOUTS: dict[str, Layout] = {
    "layer first": layer_first,
    "block first": block_first,
    "keys first": keys_first,
}


@dataclass
class Slots:
    """One extent of a store, whose pages are all as long as a block."""

    tensor: torch.Tensor
    recycled_pages: list[PageRef] = field(default_factory=list)
    filled: list[slice] = field(default_factory=list)

    def extent_tensor(self, extent_id: int) -> torch.Tensor:
        """Returns the extent; there is one."""
        return {0: self.tensor}[extent_id]

    def fill_page_tables(self, runs: object, part: slice) -> None:
        """Notes the part of each slot that is about to be written."""
        del runs
        self.filled.append(part)

    def recycled(self, runs: object) -> list[PageRef]:
        """Returns nothing: the test has no other worker."""
        del runs
        return self.recycled_pages


def slots(slot_count: int, slot_bytes: int, device: str) -> Slots:
    """Returns slots that are all zeros, on a device or in ``registered`` memory of the host."""
    if device == "registered":
        return _registered_slots(slot_count, slot_bytes)
    return Slots(torch.zeros((slot_count, slot_bytes), dtype=torch.uint8, device=device))


def _registered_slots(slot_count: int, slot_bytes: int) -> Slots:
    """Returns slots of the host in a memfd that is mapped and registered as a store's is."""
    size = slot_count * slot_bytes
    descriptor = sealed_memfd(size, REQUIRED_SEALS)
    register = partial(host_registrar(0).register, size_bytes=size, slot_bytes=slot_bytes)
    try:
        view = map_memory(descriptor, size, register=register)
    finally:
        os.close(descriptor)
    return Slots(torch.frombuffer(view, dtype=torch.uint8).view(slot_count, slot_bytes))


def transfer(job: int, blocks: range, first_slot: int = 0) -> BlockTransfer:
    """Returns a transfer between blocks and as many slots, each in their order."""
    places = range(first_slot, first_slot + len(blocks))
    return BlockTransfer(job, f"request {job}", tuple(blocks), (DatedRun(0, places),))


def content(block_count: int, block_bytes: int, device: str, seed: int = 0) -> torch.Tensor:
    """Returns the same random bytes for each call: ``[blocks, bytes]``."""
    made = torch.Generator().manual_seed(seed)
    shape = (block_count, block_bytes)
    return torch.randint(0, 256, shape, generator=made, dtype=torch.uint8).to(device)


def _blocks(
    raw: torch.Tensor,
    by_block: torch.Tensor,
    tensors: list[CacheTensor],
    caches: dict[str, torch.Tensor],
) -> Blocks:
    pieces = pieces_of(tensors, by_block.shape[0])
    return Blocks(raw, by_block, planes_of(pieces, caches))
