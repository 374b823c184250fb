"""Copies whole blocks between an engine's memory and slots, as raw bytes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from kvstore_client.engines.stretches import stretches
from kvstore_vllm.blocks.block_geometry import BlockPiece
from kvstore_vllm.step_plan import BlockTransfer

# Copied as the widest type that the sizes allow: eight bytes at a time, or one.
WIDE = 8


def copy_with_team(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies with all torch threads of the caller; on a device, on the current stream."""
    target, source = _widened(target, source)
    target.copy_(source)


def copy_alone(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies in the calling thread without the GIL; for memory of the CPU.

    The loads' thread uses it beside the engine's thread. Torch would give that thread its own
    OpenMP team for life. libgomp then counts more threads than cores, and every team, the
    engine's too, sleeps instead of spinning (libgomp's ``gomp_throttled_spin_count_var``).
    """
    target, source = _widened(target, source)
    np.copyto(target.numpy(), source.numpy())


def _widened(*sides: torch.Tensor) -> Sequence[torch.Tensor]:
    """Returns the same bytes as wider elements if all strides and sizes of both sides divide."""
    for part in sides:
        if part.shape[-1] % WIDE or part.storage_offset() % WIDE:
            return sides
        if any(stride % WIDE for stride in part.stride()[:-1]):
            return sides
    return [part.view(torch.int64) for part in sides]


class Plane(NamedTuple):
    """Blocks of one allocation as ``[blocks, parts, bytes]``, and their offset in a slot."""

    blocks: torch.Tensor
    begin: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in this plane, all its parts."""
        return self.blocks.shape[1] * self.blocks.shape[2]


class ExtentTensors(Protocol):
    """The store's memory, mapped."""

    def extent_tensor(self, extent_id: int) -> torch.Tensor:
        """Returns ``[slots, page bytes]`` of uint8; raises ``KeyError``."""


def planes_of(pieces: Sequence[BlockPiece], kv_caches: Mapping[str, torch.Tensor]) -> list[Plane]:
    """Returns all bytes of all blocks in page order.

    Raises ``ValueError`` if a layer of ``kv_caches`` does not lie at the offset in ``pieces``.
    """
    planes: list[Plane] = []
    begin = 0
    for piece in pieces:
        cache = kv_caches[piece.layers[0]]
        storage = cache.untyped_storage()
        for index, layer in enumerate(piece.layers):
            expected = storage.data_ptr() + piece.layers_at + index * piece.layer_stride
            if kv_caches[layer].data_ptr() != expected:
                raise ValueError(f"{layer} does not lie where the cache's configuration says")
        if piece.begin + piece.parts * piece.span > storage.nbytes():
            raise ValueError(
                f"{piece.layers[0]}: {storage.nbytes()} bytes hold no {piece.block_count} blocks"
            )
        raw = torch.empty(0, dtype=torch.uint8, device=cache.device).set_(storage)
        shape = (piece.block_count, piece.parts, piece.block_stride)
        blocks = raw.as_strided(shape, (piece.block_stride, piece.span, 1), piece.begin)
        planes.append(Plane(blocks, begin))
        begin += piece.block_bytes
    return planes


class BlockCopier:
    """Copies between one rank's blocks and its part of the slots.

    The part is ``rank_bytes`` of a page from ``rank * rank_bytes`` on. It makes one copy a
    stretch, which beats torch's copies by index (decision 0034). Any thread may use it. Raises
    ``ValueError`` for an engine without blocks.
    """

    def __init__(self, planes: list[Plane], rank: int = 0) -> None:
        if not planes:
            raise ValueError("an engine without KV has nothing to copy")
        self._planes = planes
        self.rank_bytes = sum(plane.block_bytes for plane in planes)
        self._begin = rank * self.rank_bytes
        # This rank's bytes of each slot.
        self.part = slice(self._begin, self._begin + self.rank_bytes)
        self.device = planes[0].blocks.device

    def load(self, memory: ExtentTensors, transfer: BlockTransfer, *, beside: bool = False) -> int:
        """Copies slots into blocks; returns the bytes.

        Raises ``KeyError`` for an unknown extent. ``beside`` is True on a thread beside
        the one that computes: a CPU copy then uses no OpenMP team (:func:`copy_alone`).
        """
        return self._copy(memory, transfer, to_blocks=True, beside=beside)

    def save(self, memory: ExtentTensors, transfer: BlockTransfer) -> int:
        """Copies blocks into slots; returns the bytes.

        Raises ``KeyError`` for an unknown extent.
        """
        return self._copy(memory, transfer, to_blocks=False)

    def _copy(
        self,
        memory: ExtentTensors,
        transfer: BlockTransfer,
        *,
        to_blocks: bool,
        beside: bool = False,
    ) -> int:
        copy = copy_alone if beside and self.device.type == "cpu" else copy_with_team
        for stretch in stretches(transfer.block_ids, transfer.places):
            slots = memory.extent_tensor(stretch.extent_id)
            for plane in self._planes:
                blocks = plane.blocks[stretch.block : stretch.block + stretch.length]
                begin = self._begin + plane.begin
                pages = slots[
                    stretch.slot : stretch.slot + stretch.length, begin : begin + plane.block_bytes
                ].unflatten(1, plane.blocks.shape[1:])
                target, source = (blocks, pages) if to_blocks else (pages, blocks)
                copy(target, source)
        return len(transfer.block_ids) * self.rank_bytes
