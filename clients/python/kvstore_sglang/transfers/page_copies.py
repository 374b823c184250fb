"""Copies of pages between SGLang's device pools and slots of the store, a layer at a time."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch

from kvstore_client import DatedRun, PageRef
from kvstore_client.engines.stretches import Stretch, stretches
from kvstore_sglang.engine.component_pages import ComponentPages, PagePiece

# The type of the devices whose copies have a stream; torch gives it to AMD's too.
CUDA: Final = "cuda"


class StoreMemory(Protocol):
    """The store's memory in this process."""

    def extent_tensor(self, extent_id: int) -> torch.Tensor:
        """Returns ``[slots, ...]``, a page in each slot; raises ``KeyError``."""

    def fill_page_tables(self, runs: Sequence[DatedRun]) -> None:
        """Fills this process's page tables for the slots of ``runs``, before they are written."""


@dataclass(frozen=True)
class PageTransfer:
    """Pages of one component of the pools, and the slots of each of their parts.

    ``extents`` are ``[slots, bytes of a page]`` of uint8, and keep the slots mapped.
    """

    component: ComponentPages
    parts: tuple[tuple[Stretch, ...], ...]
    extents: dict[int, torch.Tensor]


class PageCopies:
    """Copies of one direction, for one thread: on a device they have a stream of their own.

    Each copy is complete as its method returns. Pages of the pools are named by their numbers.
    """

    def __init__(self, device: torch.device, memory: StoreMemory) -> None:
        self._memory = memory
        self._stream = torch.cuda.Stream(device) if device.type == CUDA else None

    def transfer(
        self,
        component: ComponentPages,
        slots: torch.Tensor,
        parts: Sequence[Sequence[PageRef]],
        events: Sequence[torch.cuda.Event] = (),
    ) -> PageTransfer:
        """Returns the transfer of a component's pages in some slots of its pool.

        ``parts`` has the places of each part of the pages, in the order of the slots. First waits
        for events of the device, before which slots may not be read. Raises ``KeyError`` for an
        extent that is not mapped, and ``ValueError`` if the numbers differ.
        """
        for event in events:
            event.synchronize()
        numbers = component.page_numbers(slots)
        extents = {
            extent_id: self._memory.extent_tensor(extent_id).view(torch.uint8).flatten(1)
            for extent_id in {page.extent_id for pages in parts for page in pages}
        }
        torn = tuple(tuple(stretches(numbers, pages)) for pages in parts)
        if len(torn) != len(component.groups):
            raise ValueError(f"{len(torn)} parts of pages have slots, not {len(component.groups)}")
        return PageTransfer(component, torn, extents)

    def load_layer(self, transfer: PageTransfer, layer: int) -> int:
        """Copies one layer of each page from its slots into the pool; returns the bytes.

        Copies nothing of a layer that the component lacks.
        """
        return self._copy(transfer, transfer.component.pieces.get(layer, ()), to_pool=True)

    def save(self, transfer: PageTransfer, runs: Sequence[DatedRun]) -> int:
        """Copies pages from the pool into their slots, which are those of ``runs``.

        Returns the bytes.
        """
        self._memory.fill_page_tables(runs)
        every = [piece for layer in transfer.component.pieces.values() for piece in layer]
        return self._copy(transfer, every, to_pool=False)

    def _copy(self, transfer: PageTransfer, pieces: Iterable[PagePiece], *, to_pool: bool) -> int:
        byte_count = 0
        with self._on_stream():
            for piece in pieces:
                column = slice(piece.begin, piece.begin + piece.plane.shape[1])
                for stretch in transfer.parts[piece.part]:
                    pool = piece.plane[stretch.block : stretch.block + stretch.length]
                    slots = slice(stretch.slot, stretch.slot + stretch.length)
                    store = transfer.extents[stretch.extent_id][slots, column]
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
