"""An engine's own memory for KV, and copies between it and pages of the store."""

import hashlib
from collections.abc import Sequence

import torch

from support.fetch.workload import LARGE, LARGE_LAYOUT, PAGE_TOKENS, PAGES

# Block 0 is unused, as in engines with such memory.
BLOCKS = PAGES + 1


class EngineMemory:
    """Two pools of an engine's own, with blocks in random order.

    ``pages`` has whole pages, like the store. ``layers`` has a tensor for each layer, with all
    blocks' K and then all blocks' V, like engines with a layout of their own.
    """

    def __init__(self) -> None:
        shape = LARGE.page_shape(PAGE_TOKENS)
        self.block_ids = torch.randperm(PAGES, generator=torch.Generator().manual_seed(1)) + 1
        self.pages = torch.zeros((BLOCKS, *shape), dtype=torch.bfloat16)
        self.layers = [
            torch.zeros((2, BLOCKS, *shape[2:]), dtype=torch.bfloat16)
            for _ in range(LARGE.layer_count)
        ]

    def fill(self, payload: bytes) -> None:
        """Writes the KV of a prompt into both pools."""
        shape = (PAGES, *LARGE.page_shape(PAGE_TOKENS))
        pages = torch.frombuffer(bytearray(payload), dtype=torch.bfloat16).view(shape)
        self.pages[self.block_ids] = pages
        for number, layer in enumerate(self.layers):
            layer[:, self.block_ids] = pages[:, number].transpose(0, 1)

    def clear(self) -> None:
        """Clears the KV, so that later KV must have been fetched."""
        for each in (self.pages, *self.layers):
            each.zero_()

    def digests(self) -> tuple[str, str]:
        """Returns a digest of the KV in each pool, as pages in the prompt's order."""
        stacked = torch.stack([layer[:, self.block_ids] for layer in self.layers])
        return _digest(self.pages[self.block_ids]), _digest(stacked.permute(2, 0, 1, 3, 4, 5))

    def gather_pages(self, extent: torch.Tensor, slots: Sequence[int]) -> None:
        """Copies pages from these slots of an extent into ``pages``, one copy a page."""
        for slot, block in zip(slots, self.block_ids.tolist(), strict=True):
            self.pages[block].copy_(extent[slot])

    def gather_layers(self, extent: torch.Tensor, slots: Sequence[int]) -> None:
        """Copies pages from these slots of an extent into ``layers``."""
        for first, run in _runs(slots):
            blocks, source = self.block_ids[first : first + len(run)], extent[run.start : run.stop]
            for number, layer in enumerate(self.layers):
                for plane in (0, 1):
                    layer[plane].index_copy_(0, blocks, source[:, number, plane])

    def scatter_layers(self, extent: torch.Tensor, slots: Sequence[int]) -> None:
        """Copies ``layers`` into slots of an extent."""
        for first, run in _runs(slots):
            blocks, target = self.block_ids[first : first + len(run)], extent[run.start : run.stop]
            for number, layer in enumerate(self.layers):
                for plane in (0, 1):
                    target[:, number, plane] = layer[plane].index_select(0, blocks)


def _runs(slots: Sequence[int]) -> list[tuple[int, range]]:
    """Returns the runs of consecutive slots, each with the index of its first."""
    runs: list[tuple[int, range]] = []
    for index, slot in enumerate(slots):
        if runs and runs[-1][1].stop == slot:
            first, run = runs[-1]
            runs[-1] = first, range(run.start, slot + 1)
        else:
            runs.append((index, range(slot, slot + 1)))
    return runs


def _digest(pages: torch.Tensor) -> str:
    content = pages.contiguous().view(torch.uint8).numpy()
    assert content.nbytes == PAGES * LARGE_LAYOUT.page_bytes
    return hashlib.sha256(content.tobytes()).hexdigest()
