"""The tables that a step's kernels read besides keys and values: made on the host, sent at once."""

from typing import NamedTuple

import numpy as np
import torch

from inference_worker.attention.extent_rows import upload
from inference_worker.attention.kernel_shape import (
    KernelShape,
    decode_rows,
    padded_dims,
    prefill_rows,
)
from inference_worker.attention.work_list import (
    ENTRY_COLUMNS,
    MERGE_COLUMNS,
    Numbers,
    Parts,
    WorkList,
    plan_work,
)
from inference_worker.engine.step import Step


class Room(NamedTuple):
    """The number of programs that run at once on the device, of decodes and of prefills."""

    decode: int
    prefill: int


class StepWork(NamedTuple):
    """The launches of a layer: int64 on the device, as ``WorkList`` describes them."""

    decodes: torch.Tensor
    prefills: torch.Tensor
    merges: torch.Tensor
    partial_count: int


class StepTables:
    """One step's tables on the device.

    A step sends one array: new page distances, where each token is written, and the work of the
    first layer. Each further window of a model's layers sends its own work. Valid until the next
    step's are sent. One engine thread uses it.
    """

    def __init__(self, step: Step, shape: KernelShape, room: Room) -> None:
        """Takes a step; sends nothing before the first :meth:`work`."""
        self._step = step
        self._shape = shape
        self._room = room
        self._parts: Parts | None = None
        self._work: dict[tuple[int, int | None], StepWork] = {}
        self.spots: torch.Tensor
        self.pages: torch.Tensor

    def work(self, group: int, window: int | None) -> StepWork:
        """Returns the work of layers with this window, for ``group`` query heads a kv head.

        Raises ``UnknownExtentError`` for a page of an extent that is not mapped.
        """
        found = self._work.get((group, window))
        if found is None:
            found = self._work[group, window] = self._send(group, window)
        return found

    def _send(self, group: int, window: int | None) -> StepWork:
        if self._parts is not None:
            return self._send_work(self._parts, group, window, [])[0]
        step, distances = self._step, self._step.pool.distances
        update = distances.update([part.table for part in step.parts])
        counts = np.array([part.count for part in step.parts])
        starts = np.array([part.start for part in step.parts])
        parts = Parts(counts.cumsum() - counts, starts, counts, update.offsets)
        spots = update.offsets * step.pool.layout.page_tokens
        spots = np.repeat(spots + starts - parts.row, counts) + np.arange(step.token_count)
        before = [update.places, update.distances, spots]
        work, (places, new, self.spots) = self._send_work(parts, group, window, before)
        distances.write(update, places, new)
        self.pages = distances.array
        self._parts = parts
        return work

    def _send_work(
        self, parts: Parts, group: int, window: int | None, before: list[Numbers]
    ) -> tuple[StepWork, list[torch.Tensor]]:
        """Sends ``before`` and the work in one array; returns both on the device."""
        decodes, prefills = self._plan(parts, group, window)
        arrays = [*before, decodes.entries, prefills.entries, decodes.merges, prefills.merges]
        numbers = np.concatenate([each.reshape(-1) for each in arrays], dtype=np.int64)
        sent = upload(torch.from_numpy(numbers), self._step.pool.device)
        merge_size = decodes.merges.size + prefills.merges.size
        sizes = [*(each.size for each in arrays[:-2]), merge_size]
        *found, first, second, merges = sent.split(sizes)
        work = StepWork(
            first.view(-1, ENTRY_COLUMNS),
            second.view(-1, ENTRY_COLUMNS),
            merges.view(-1, MERGE_COLUMNS),
            decodes.partial_count + prefills.partial_count,
        )
        return work, found

    def _plan(self, parts: Parts, group: int, window: int | None) -> tuple[WorkList, WorkList]:
        """Plans two lists: the parts that fit into one tile of a decode, and the others."""
        pool = self._step.pool
        layout, shape = pool.layout, self._shape
        dims, value_bytes = padded_dims(layout.head_dim), pool.dtype.itemsize
        head_bytes = dims * value_bytes
        few = decode_rows(group) // group
        is_decode = parts.tokens <= few
        decodes = plan_work(
            parts.where(is_decode),
            queries=few,
            keys=shape.decode.keys_of(head_bytes),
            window=window,
            programs=max(1, self._room.decode // layout.kv_head_count),
        )
        prefills = plan_work(
            parts.where(~is_decode),
            queries=prefill_rows(group, dims, value_bytes) // group,
            keys=shape.prefill.keys_of(head_bytes),
            window=window,
            programs=max(1, self._room.prefill // layout.kv_head_count),
            first_partial=decodes.partial_count,
        )
        return decodes, prefills
