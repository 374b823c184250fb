"""Attention by Triton kernels that read every page in place, in any extent.

Importing this needs Triton, which comes with torch for CUDA and is not a requirement of this
package: see :mod:`~inference_worker.attention.selector`.
"""

from typing import Final

import torch
from triton import next_power_of_2

from inference_worker.attention.attention import Terms
from inference_worker.attention.kernel_shape import (
    KernelShape,
    LaunchShape,
    decode_rows,
    padded_dims,
    prefill_rows,
)
from inference_worker.attention.kernels import attend_pages, merge_splits, write_rows
from inference_worker.attention.step import Step
from inference_worker.attention.step_tables import Occupancy, StepTables, StepWork
from inference_worker.pages.distances import UNIT_BYTES

DEFAULT_SHAPE: Final = KernelShape()


class KernelAttention:
    """Launches the attention of a step's layers, over tables that are sent once a step.

    A layer has up to four launches: write keys and values, attend for decodes, attend for prefills,
    and merge the partial results of tiles that were split. One engine thread uses it, on the
    device's current stream; the extents must stay mapped meanwhile.
    """

    def __init__(
        self, step: Step, *, programs: int | None = None, shape: KernelShape = DEFAULT_SHAPE
    ) -> None:
        """Takes a ``step`` whose pool is on a CUDA device, or in Triton's interpreter on a CPU.

        Long reads are split for ``programs`` that run at once, by default as many as the device's
        multiprocessors have room for. ``why_no_kernels`` must give no reason against the layout.
        """
        pool = step.pool
        self._layout, self._shape = pool.layout, shape
        self._unit = UNIT_BYTES // pool.dtype.itemsize
        self._base = pool.distances.base
        room = _room(pool.device, shape) if programs is None else Occupancy(programs, programs)
        self._tables = StepTables(step, shape, room)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        terms: Terms,
    ) -> torch.Tensor:
        """Attends as :meth:`~inference_worker.attention.attention.StepAttention.attend` does.

        Raises ``UnknownExtentError`` for a page of an extent that is not mapped.
        """
        # Kernels need the values of a head side by side.
        query, key, value = (
            x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value)
        )
        with torch.cuda.device_of(query):
            group = query.shape[0] // self._layout.kv_head_count
            work = self._tables.work(group, terms.window)
            self._write(layer, key, value)
            return self._attend(layer, query, terms, work)

    def _write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        layout = self._layout
        write_rows[(key.shape[1],)](
            self._base,
            self._tables.pages,
            self._tables.spots,
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

    def _attend(
        self, layer: int, query: torch.Tensor, terms: Terms, work: StepWork
    ) -> torch.Tensor:
        heads, tokens, head_dim = query.shape
        group = heads // self._layout.kv_head_count
        rows = prefill_rows(group, padded_dims(head_dim), query.element_size())
        answer = query.new_empty((tokens, heads, head_dim))
        # Always of one dtype, since Triton compiles the kernel again for each dtype.
        partial = (max(1, work.partial_count), heads)
        sums = query.new_empty((*partial, head_dim), dtype=torch.float32)
        peaks = query.new_empty((*partial, 2), dtype=torch.float32)
        outputs = (answer, sums, peaks)
        for entries, tile_rows, shape in (
            (work.decodes, decode_rows(group), self._shape.decode),
            (work.prefills, rows, self._shape.prefill),
        ):
            if entries.shape[0]:
                self._launch(layer, query, terms, entries, tile_rows, shape, outputs)
        if work.merges.shape[0]:
            merge_splits[(work.merges.shape[0] * heads,)](
                answer,
                sums,
                peaks,
                work.merges,
                HEADS=heads,
                HEAD_DIM=head_dim,
                DIMS=next_power_of_2(head_dim),
                SPLITS=self._shape.merged,
                num_warps=4,
            )
        return answer

    def _launch(
        self,
        layer: int,
        query: torch.Tensor,
        terms: Terms,
        entries: torch.Tensor,
        rows: int,
        shape: LaunchShape,
        outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    ) -> None:
        layout = self._layout
        dims = padded_dims(layout.head_dim)
        attend_pages[(entries.shape[0] * layout.kv_head_count,)](
            *outputs,
            query,
            self._base,
            self._tables.pages,
            entries,
            outputs[0] if terms.sinks is None else terms.sinks,
            layer,
            terms.window or 0,
            float(terms.scale),
            float(terms.softcap or 0.0),
            query.stride(1),
            query.stride(0),
            GROUP=query.shape[0] // layout.kv_head_count,
            KV_HEADS=layout.kv_head_count,
            HEAD_DIM=layout.head_dim,
            PAGE_TOKENS=layout.page_tokens,
            UNIT=self._unit,
            DIMS=dims,
            ROWS=rows,
            KEYS=shape.keys_of(dims * query.element_size()),
            HAS_WINDOW=terms.window is not None,
            HAS_SOFTCAP=terms.softcap is not None,
            HAS_SINKS=terms.sinks is not None,
            # For float32 only: in three parts, so that tensor cores lose almost no precision.
            PRECISION="tf32x3",
            num_warps=shape.warps_of(rows),
            num_stages=shape.stages,
        )


def _room(device: torch.device, shape: KernelShape) -> Occupancy:
    """Returns how many programs a device runs at once; one on a CPU, in the interpreter."""
    if device.type != "cuda":
        return Occupancy(1, 1)
    processors: int = torch.cuda.get_device_properties(device).multi_processor_count
    return Occupancy(shape.decode.programs * processors, shape.prefill.programs * processors)
