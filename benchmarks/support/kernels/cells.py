"""The steps that gpu_kernels.py times: how many sequences, how long, and in which mix."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from inference_worker.attention.attention import Terms
from inference_worker.attention.step import Step, StepPart
from inference_worker.pages.block_table import BlockTable
from inference_worker.pages.layout import PageLayout, PageRef
from inference_worker.pages.pool import PagePool

UNIFORM, ONE_LONG, BESIDE_PREFILL = "uniform", "one long", "beside a prefill"
EXTENT = 0


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The shape of a model's attention; a head has ``head_dim`` values."""

    kv_heads: int
    group: int
    head_dim: int
    dtype: str
    page_tokens: int = 16

    def layout(self, layer_count: int) -> PageLayout:
        """Returns the page layout of a model with so many layers."""
        return PageLayout(layer_count, self.kv_heads, self.head_dim, self.dtype, self.page_tokens)


# Qwen3-8B's attention, and a small one that only tries the code.
QWEN3_8B = Heads(kv_heads=8, group=4, head_dim=128, dtype="bfloat16")
TOY = Heads(kv_heads=2, group=2, head_dim=32, dtype="float32")


class Cell(NamedTuple):
    """A step of ``batch`` decodes. ``context`` is that of all of them, or of the long one.

    ``parts`` are (tokens before, tokens computed), ``tokens`` all tokens in pages.
    """

    mix: str
    batch: int
    context: int
    parts: tuple[tuple[int, int], ...]

    @property
    def tokens(self) -> int:
        """All tokens that have a place in pages."""
        return sum(before + count for before, count in self.parts)


def cells(batches: tuple[int, ...], contexts: tuple[int, ...], chunk_tokens: int) -> Iterator[Cell]:
    """Yields every cell once; in ``ONE_LONG`` the others have the shortest context."""
    for batch in batches:
        for context in contexts:
            decode = (context - 1, 1)
            yield Cell(UNIFORM, batch, context, (decode,) * batch)
            if batch > 1 and context > min(contexts):
                short = (min(contexts) - 1, 1)
                yield Cell(ONE_LONG, batch, context, (decode, *(short,) * (batch - 1)))
            chunk = (context, chunk_tokens)
            yield Cell(BESIDE_PREFILL, batch, context, ((decode,) * batch) + (chunk,))


class CellStep:
    """A cell's step on a device, its pages in one extent in random order, and a layer's inputs.

    The pages have ``layer_count`` layers, so that the device's cache does not hold the keys of one
    launch for the next.
    """

    def __init__(self, cell: Cell, heads: Heads, layer_count: int, device: str) -> None:
        self.layer_count = layer_count
        layout = heads.layout(layer_count)
        counts = [layout.pages_for(before + count) for before, count in cell.parts]
        pages = sum(counts)
        dtype = getattr(torch, heads.dtype)
        made = torch.Generator().manual_seed(1)
        self.pool = PagePool(layout, device)
        memory = torch.empty((pages, *layout.page_shape), dtype=dtype, device=device)
        self.pool.add_extent(EXTENT, memory.uniform_(-1, 1))
        order = iter(torch.randperm(pages, generator=made).tolist())
        parts = tuple(
            StepPart(
                table=BlockTable(
                    heads.page_tokens, [PageRef(EXTENT, next(order)) for _ in range(count)]
                ),
                start=before,
                count=computed,
            )
            for (before, computed), count in zip(cell.parts, counts, strict=True)
        )
        self.step = Step(self.pool, parts)
        tokens = self.step.token_count
        self.inputs = tuple(
            torch.randn((tokens, each, heads.head_dim), generator=made)
            .to(device, dtype)
            .transpose(0, 1)
            for each in (heads.kv_heads * heads.group, heads.kv_heads, heads.kv_heads)
        )
        self.terms = Terms(scale=heads.head_dim**-0.5, window=None, softcap=None, sinks=None)
        row = layout.token_values * memory.element_size()
        # The least bytes that a layer reads and writes: each key and value once.
        self.write_bytes = 2 * 2 * tokens * row
        self.attend_bytes = 2 * cell.tokens * row + 2 * tokens * row * heads.group


def layer_bytes(cell: Cell, heads: Heads) -> int:
    """Returns the bytes of one layer of a cell's pages."""
    layout = heads.layout(1)
    return sum(layout.pages_for(before + count) for before, count in cell.parts) * layout.page_bytes
