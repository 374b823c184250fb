"""Attention by Triton kernels that read every page where it lies, in whatever extent.

Importing this needs Triton, which comes with torch for CUDA and is no requirement of ours: see
:mod:`~inference_worker.attention_choice`.
"""

from typing import Final

import torch
from triton import cdiv, next_power_of_2

from inference_worker.attention import Terms
from inference_worker.page_kernels import attend_pages, merge_splits, write_rows
from inference_worker.step import Step
from inference_worker.upload import upload

# What the kernels count places in, in bytes: the most that one instruction moves.
UNIT_BYTES: Final = 16
# Rows of a tile: queries times the heads that share a kv head.
FEWEST_ROWS: Final = 16
MOST_ROWS: Final = 128
# Rows that a tile's sums have registers for, in bytes of the pages' values, padded.
ROWS_BYTES: Final = 32 << 10
# Keys read at once: as many as fit into this, of one head, padded.
KEYS_BYTES: Final = 16 << 10
FEWEST_KEYS, MOST_KEYS = 16, 64
# A split of fewer keys costs more in putting sums together than it gains.
SPLIT_KEYS: Final = 256
MOST_SPLITS: Final = 64
# Programs that keep one multiprocessor busy while some wait for memory.
PROGRAMS_PER_PROCESSOR: Final = 2


class KernelAttention:
    """One step's tables on the device, and the launches of its layers.

    A page is named by its distance from one page of the step, so that pages of allocations that
    have nothing to do with each other stand in one table. The tables travel once a step.
    One engine thread uses it, on the device's current stream; the extents stay meanwhile.
    """

    def __init__(self, step: Step, *, programs: int | None = None) -> None:
        """Lay out the tables of ``step``, whose pool is on a CUDA device.

        Long reads are split until there are ``programs`` to run, by default what the device's
        multiprocessors have room for. The layout is one that ``why_no_kernels`` has no reason
        against.
        """
        pool, layout = step.pool, step.pool.layout
        self._device, self._layout = pool.device, layout
        self._base = pool.page(step.parts[0].table[0])
        self._unit = UNIT_BYTES // self._base.element_size()
        self._counts = [part.count for part in step.parts]
        self._longest = max(part.end for part in step.parts)
        self._programs = programs or _room(pool.device)
        self._tiles: dict[int, torch.Tensor] = {}

        parts, pages, places = [], [], []
        begin = page_count = 0
        for part in step.parts:
            distances = (pool.addresses(part.table) - self._base.data_ptr()) // UNIT_BYTES
            positions = torch.arange(part.start, part.end)
            within = positions % layout.page_tokens * (layout.token_values // self._unit)
            places.append(distances[positions // layout.page_tokens] + within)
            pages.append(distances[: layout.pages_for(part.end)])
            parts.append(torch.tensor([begin, part.start, part.end, page_count]))
            begin += part.count
            page_count += pages[-1].shape[0]
        tables = upload(torch.cat([*parts, *pages, *places]), pool.device)
        sizes = (4 * len(parts), page_count, begin)
        self._parts, self._pages, self._places = tables.split(sizes)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        terms: Terms,
    ) -> torch.Tensor:
        """Attend as :meth:`~inference_worker.attention.StepAttention.attend` says."""
        # Kernels want the values of a head side by side.
        query, key, value = (
            x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value)
        )
        with torch.cuda.device_of(query):
            self._write(layer, key, value)
            return self._attend(layer, query, terms)

    def _write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        layout = self._layout
        write_rows[(key.shape[1],)](
            self._base,
            self._places,
            key,
            value,
            layer,
            key.stride(1),
            key.stride(0),
            value.stride(1),
            value.stride(0),
            KV_HEADS=layout.kv_head_count,
            HEAD_DIM=layout.head_dim,
            PAGE_TOKENS=layout.page_tokens,
            UNIT=self._unit,
            HEADS=next_power_of_2(layout.kv_head_count),
            DIMS=next_power_of_2(layout.head_dim),
        )

    def _attend(self, layer: int, query: torch.Tensor, terms: Terms) -> torch.Tensor:
        layout = self._layout
        heads, tokens, head_dim = query.shape
        group = heads // layout.kv_head_count
        dims = max(16, next_power_of_2(head_dim))
        rows = _rows(group, max(self._counts), dims * query.element_size())
        keys = KEYS_BYTES // (dims * query.element_size())
        tiles = self._tiles_of(rows // group)
        splits = self._splits(tiles.shape[0] * layout.kv_head_count, terms.window)
        answer = query.new_empty((tokens, heads, head_dim))
        sums = peaks = answer
        if splits > 1:
            sums = query.new_empty((splits, *answer.shape), dtype=torch.float32)
            peaks = query.new_empty((splits, tokens, heads, 2), dtype=torch.float32)
        attend_pages[(tiles.shape[0], layout.kv_head_count, splits)](
            answer,
            sums,
            peaks,
            query,
            self._base,
            self._pages,
            self._parts,
            tiles,
            answer if terms.sinks is None else terms.sinks,
            layer,
            splits,
            tokens,
            terms.window or 0,
            float(terms.scale),
            float(terms.softcap or 0.0),
            query.stride(1),
            query.stride(0),
            GROUP=group,
            KV_HEADS=layout.kv_head_count,
            HEAD_DIM=head_dim,
            PAGE_TOKENS=layout.page_tokens,
            UNIT=self._unit,
            DIMS=dims,
            ROWS=rows,
            KEYS=max(FEWEST_KEYS, min(keys, MOST_KEYS)),
            IS_SPLIT=splits > 1,
            HAS_WINDOW=terms.window is not None,
            HAS_SOFTCAP=terms.softcap is not None,
            HAS_SINKS=terms.sinks is not None,
            # Of float32 alone: in three parts, so that tensor cores lose next to nothing of it.
            PRECISION="tf32x3",
            num_warps=8 if rows > MOST_ROWS // 2 else 4,
            # Keys are loaded one round ahead, and the pages they lie in one round before that.
            num_stages=3,
        )
        if splits > 1:
            merge_splits[(tokens * heads,)](
                answer,
                sums,
                peaks,
                splits,
                tokens * heads,
                HEAD_DIM=head_dim,
                DIMS=dims,
                num_warps=1,
            )
        return answer

    def _tiles_of(self, queries: int) -> torch.Tensor:
        """Cut each part into tiles of ``queries``: ``[tiles, 2]``, the part and its first query."""
        if queries not in self._tiles:
            cut = [
                (number, first)
                for number, count in enumerate(self._counts)
                for first in range(0, count, queries)
            ]
            self._tiles[queries] = upload(torch.tensor(cut), self._device)
        return self._tiles[queries]

    def _splits(self, programs: int, window: int | None) -> int:
        """Say into how many shares the keys of each tile go."""
        keys = self._longest if window is None else min(self._longest, window)
        wanted: int = cdiv(self._programs, programs)
        return max(1, min(wanted, keys // SPLIT_KEYS, MOST_SPLITS))


def _rows(group: int, count: int, row_bytes: int) -> int:
    """Choose a tile's rows for parts of up to ``count`` queries; at least one whole group."""
    whole: int = next_power_of_2(group)
    wanted: int = next_power_of_2(count * group)
    most = min(MOST_ROWS, ROWS_BYTES // row_bytes)
    if wanted > FEWEST_ROWS:
        # Of two sizes only: each is compiled for.
        wanted = most if wanted > most // 2 else max(FEWEST_ROWS, most // 2)
    return max(FEWEST_ROWS, wanted, whole)


def _room(device: torch.device) -> int:
    """Say how many programs a device runs at once; one on a CPU, in the interpreter."""
    if device.type != "cuda":
        return 1
    processors: int = torch.cuda.get_device_properties(device).multi_processor_count
    return PROGRAMS_PER_PROCESSOR * processors
