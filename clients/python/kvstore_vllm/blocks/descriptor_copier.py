"""Copies whole blocks by address, a list of copies at a time, for memory of a device."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kvstore_client.memory.cuda.host_registration import slots_per_piece
from kvstore_vllm.blocks.block_copier import ExtentTensors, Plane
from kvstore_vllm.step_plan import BlockTransfer

Numbers = NDArray[np.int64]


class Submit(Protocol):
    """Begins copies by address."""

    def __call__(
        self, sources: Numbers, targets: Numbers, sizes: Numbers, *, any_order: bool
    ) -> None:
        """Begins to copy ``sizes[i]`` bytes from ``sources[i]`` to ``targets[i]``, for each i.

        On a device the copies follow the work on the calling thread's current stream. With
        ``any_order`` a source may be read earlier, so no work on the device may write it. The
        arrays are read before it returns. If it raises, some of the copies may have begun.
        """


def submit_to_cpu(sources: Numbers, targets: Numbers, sizes: Numbers, *, any_order: bool) -> None:
    """Copies between memory of the CPU; the copies are complete on return."""
    del any_order
    for source, target, size in zip(
        sources.tolist(), targets.tolist(), sizes.tolist(), strict=True
    ):
        ctypes.memmove(target, source, size)


class Descriptors(NamedTuple):
    """Copies between blocks and slots: the addresses on both sides, and the bytes of each."""

    blocks: Numbers
    slots: Numbers
    sizes: Numbers


class DescriptorCopier:
    """Copies between one rank's blocks and its part of the slots, by one ``submit`` a transfer.

    The part is ``rank_bytes`` of a page from ``rank * rank_bytes`` on. A transfer allocates
    nothing but its descriptors, whatever the layout of the blocks. Any thread may use it. Raises
    ``ValueError`` for an engine without blocks.
    """

    def __init__(self, planes: Sequence[Plane], submit: Submit, rank: int = 0) -> None:
        if not planes:
            raise ValueError("an engine without KV has nothing to copy")
        self._submit = submit
        self.rank_bytes = sum(plane.block_bytes for plane in planes)
        self.device = planes[0].blocks.device
        begin = rank * self.rank_bytes
        # This rank's bytes of each slot.
        self.part = slice(begin, begin + self.rank_bytes)
        self._block_count = min(plane.blocks.shape[0] for plane in planes)
        # One row a part of a block, in page order: a page's parts follow one another in its slot.
        addresses, strides, sizes = [], [], []
        for blocks, _ in planes:
            block_stride, span, _ = blocks.stride()
            for part in range(blocks.shape[1]):
                addresses.append(blocks.data_ptr() + part * span)
                strides.append(block_stride)
                sizes.append(blocks.shape[2])
        self._addresses = np.asarray(addresses, np.int64)
        self._strides = np.asarray(strides, np.int64)
        self._sizes = np.asarray(sizes, np.int64)
        self._offsets = begin + np.cumsum(self._sizes) - self._sizes

    def load(self, memory: ExtentTensors, transfer: BlockTransfer, *, beside: bool = False) -> int:
        """Begins to copy slots into blocks; returns the bytes. Raises as :meth:`descriptors`.

        ``beside`` changes nothing: no copy by address uses threads of torch.
        """
        del beside
        blocks, slots, sizes = self.descriptors(memory, transfer)
        # The store pins the slots, and nothing on this device writes them.
        self._submit(slots, blocks, sizes, any_order=True)
        return len(transfer.block_ids) * self.rank_bytes

    def save(self, memory: ExtentTensors, transfer: BlockTransfer) -> int:
        """Begins to copy blocks into slots; returns the bytes. Raises as :meth:`descriptors`."""
        blocks, slots, sizes = self.descriptors(memory, transfer)
        self._submit(blocks, slots, sizes, any_order=False)
        return len(transfer.block_ids) * self.rank_bytes

    def descriptors(self, memory: ExtentTensors, transfer: BlockTransfer) -> Descriptors:
        """Returns a transfer's copies. Copies that follow one another on both sides are one.

        Raises ``KeyError`` for an unknown extent, and ``IndexError`` for a block or a slot that
        does not exist.
        """
        block_ids = np.asarray(transfer.block_ids, np.int64)
        _require_within(block_ids, self._block_count, "block")
        slots, begins_piece = self._slots(memory, transfer)
        at_blocks = (self._addresses + block_ids[:, None] * self._strides).ravel()
        at_slots = (slots[:, None] + self._offsets).ravel()
        sizes = np.tile(self._sizes, len(block_ids))
        follows = at_blocks[1:] == at_blocks[:-1] + sizes[:-1]
        follows &= at_slots[1:] == at_slots[:-1] + sizes[:-1]
        begins = np.append(True, ~follows)
        # CUDA refuses a copy that spans two registrations of the host's memory.
        begins[:: len(self._sizes)] |= begins_piece
        first = np.flatnonzero(begins)
        return Descriptors(at_blocks[first], at_slots[first], np.add.reduceat(sizes, first))

    def _slots(
        self, memory: ExtentTensors, transfer: BlockTransfer
    ) -> tuple[Numbers, NDArray[np.bool_]]:
        """Returns each slot's address, and whether a piece of registered memory begins there."""
        count = len(transfer.block_ids)
        found, begins_piece, end = np.empty(count, np.int64), np.empty(count, np.bool_), 0
        for extent_id, run, _ in transfer.runs:
            extent = memory.extent_tensor(extent_id)
            slots = np.asarray(run, np.int64)
            _require_within(slots, extent.shape[0], "slot")
            slot_bytes, width = extent.stride()
            if width != 1 or self.part.stop > extent.shape[1]:
                raise IndexError(f"a page of {tuple(extent.shape)} bytes has no part of this rank")
            begin, end = end, end + len(slots)
            found[begin:end] = extent.data_ptr() + slots * slot_bytes
            begins_piece[begin:end] = slots % slots_per_piece(slot_bytes) == 0
        if end != count:
            raise IndexError(f"{count} blocks have {end} slots")
        return found, begins_piece


def _require_within(numbers: Numbers, count: int, kind: str) -> None:
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < count):
        raise IndexError(f"{kind} {numbers.max()} or {numbers.min()} is none of {count}")
