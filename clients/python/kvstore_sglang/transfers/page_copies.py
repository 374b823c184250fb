"""Copies of pages between SGLang's device pool and slots of the store, a layer at a time."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch

from kvstore_client import DatedRun, PageRef
from kvstore_client.engines.stretches import Stretch, stretches
from kvstore_sglang.engine.device_pool import DevicePool

# The type of the devices whose copies have a stream; torch gives it to AMD's too.
CUDA: Final = "cuda"
# An extent's slots as bytes: [slots, layers, keys and values, bytes of a page of one layer].
SLOT_AXES: Final = 3


class StoreMemory(Protocol):
    """The store's memory in this process."""

    def extent_tensor(self, extent_id: int) -> torch.Tensor:
        """Returns ``[slots, layers, keys and values, ...]``; raises ``KeyError``."""

    def fill_page_tables(self, runs: Sequence[DatedRun]) -> None:
        """Fills this process's page tables for the slots of ``runs``, before they are written."""


@dataclass(frozen=True)
class PageTransfer:
    """Pages of the device pool and their slots. ``extents`` keeps the slots mapped."""

    stretches: tuple[Stretch, ...]
    extents: dict[int, torch.Tensor]


class PageCopies:
    """The copies of one direction, for one thread: on a device they have a stream of their own.

    Each copy is complete as its method returns. Pages of the pool are named by their numbers.
    """

    def __init__(self, pool: DevicePool, memory: StoreMemory) -> None:
        self._pool = pool
        self._memory = memory
        self._stream = torch.cuda.Stream(pool.device) if pool.device.type == CUDA else None

    def transfer(
        self,
        slots: torch.Tensor,
        pages: Sequence[PageRef],
        events: Sequence[torch.cuda.Event] = (),
    ) -> PageTransfer:
        """Returns the transfer of the pages in some slots of the pool, in the order of ``pages``.

        First waits for events of the device, before which slots may not be read. Raises
        ``KeyError`` for an extent that is not mapped, and ``ValueError`` if the numbers differ.
        """
        for event in events:
            event.synchronize()
        numbers = self._pool.page_numbers(slots)
        extents = {
            extent_id: self._memory.extent_tensor(extent_id).view(torch.uint8).flatten(SLOT_AXES)
            for extent_id in {page.extent_id for page in pages}
        }
        return PageTransfer(tuple(stretches(numbers, pages)), extents)

    def load_layer(self, transfer: PageTransfer, layer: int) -> int:
        """Copies one layer of each page from its slot into the pool; returns the bytes."""
        return self._copy(transfer, [layer], to_pool=True)

    def save(self, transfer: PageTransfer, runs: Sequence[DatedRun]) -> int:
        """Copies pages from the pool into their slots, which are those of ``runs``.

        Returns the bytes.
        """
        self._memory.fill_page_tables(runs)
        return self._copy(transfer, range(len(self._pool.layers)), to_pool=False)

    def _copy(self, transfer: PageTransfer, layers: Sequence[int], *, to_pool: bool) -> int:
        byte_count = 0
        with self._on_stream():
            for stretch in transfer.stretches:
                slots = slice(stretch.slot, stretch.slot + stretch.length)
                numbers = slice(stretch.block, stretch.block + stretch.length)
                extent = transfer.extents[stretch.extent_id][slots]
                for layer in layers:
                    for half, plane in enumerate(self._pool.layers[layer].planes):
                        pool, store = plane[numbers], extent[:, layer, half]
                        self._copy_rows(*((pool, store) if to_pool else (store, pool)))
                        byte_count += pool.numel()
        if self._stream is not None:
            self._stream.synchronize()
        return byte_count

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _copy_rows(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copies ``[pages, bytes]``; on a device, queues the copies on the stream."""
        if self._stream is None:
            # Without the GIL, and without a team of OpenMP threads beside the engine's.
            np.copyto(target.numpy(), source.numpy())
            return
        # Row by row: torch would stage rows that do not lie together in memory of its own.
        for to, of in zip(target, source, strict=True):
            to.copy_(of, non_blocking=True)
