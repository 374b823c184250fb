"""The tables that a step's kernels read besides keys and values, and the plan of their work.

As FlashInfer's plan and FlashAttention 3's scheduler metadata do, the host cuts the keys of a step
into shares of about equal size before the launch. A program's time grows with its keys, so one long
context among short ones would leave most of a GPU idle. The tables are made on the host and sent at
once.
"""

from bisect import bisect_left
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from inference_worker.attention.kernel_shape import (
    KernelShape,
    decode_rows,
    padded_dims,
    prefill_rows,
)
from inference_worker.attention.step import Step
from inference_worker.pages.extents import upload

# Merging a share of fewer keys costs more than the share saves.
SPLIT_KEYS: Final = 256
# Columns of an entry, and of a merge.
ENTRY_COLUMNS: Final = 8
MERGE_COLUMNS: Final = 4

Numbers = npt.NDArray[np.int64]


class StepParts(NamedTuple):
    """Some parts of a step: int64 ``[parts]`` each.

    ``row`` is where a part's tokens begin in the step, ``start`` the position of its first token,
    ``tokens`` the number of its tokens. ``table`` is where the part's page distances begin.
    """

    row: Numbers
    start: Numbers
    tokens: Numbers
    table: Numbers

    def where(self, chosen: npt.NDArray[np.bool_]) -> "StepParts":
        """Returns the chosen parts."""
        return StepParts(*(each[chosen] for each in self))


class WorkList(NamedTuple):
    """The work of the programs of one launch: int64 ``[entries, 8]``, the longest first.

    The columns of an entry: the step's row of its first query, that query's position, the number of
    queries, where the page distances begin, the first key, the key after the last, where the
    partial results go (-1: the answer is complete), and 1 if no earlier share of the same queries
    exists.

    ``merges`` ``[tokens, 4]`` are the tokens with partial results: the step's row, the first
    partial result, how far the next one is, and their number. ``partial_count`` counts the partial
    results.
    """

    entries: Numbers
    merges: Numbers
    partial_count: int


NO_WORK: Final = WorkList(
    np.empty((0, ENTRY_COLUMNS), np.int64), np.empty((0, MERGE_COLUMNS), np.int64), 0
)


def plan_work(
    parts: StepParts,
    *,
    queries: int,
    keys: int,
    window: int | None,
    programs: int,
    first_partial: int = 0,
) -> WorkList:
    """Cuts parts into tiles of ``queries`` queries, and the keys of long tiles into shares.

    A program reads ``keys`` keys at a time; shares begin at multiples of that. Keys outside the
    ``window`` are not read. ``programs`` run at once. A share has at most twice the mean number of
    key blocks of all shares, or ``SPLIT_KEYS`` keys. Partial results are numbered from
    ``first_partial`` on.
    """
    if not len(parts.tokens):
        return NO_WORK
    tiles = -(-parts.tokens // queries)
    part = np.repeat(np.arange(len(tiles)), tiles)
    first = _counted_within(tiles) * queries
    count = np.minimum(parts.tokens[part] - first, queries)
    position = parts.start[part] + first
    lowest = np.zeros_like(position)
    if window is not None:
        lowest = np.maximum(position - window + 1, 0) // keys * keys
    end = position + count
    blocks = -(-(end - lowest) // keys)

    shares = -(-blocks // _most_blocks(blocks, programs, max(1, SPLIT_KEYS // keys)))
    partials = np.where(shares > 1, shares * count, 0)
    partial = first_partial + partials.cumsum() - partials

    tile = np.repeat(np.arange(len(shares)), shares)
    share = _counted_within(shares)
    begin = lowest[tile] + blocks[tile] * share // shares[tile] * keys
    behind = lowest[tile] + blocks[tile] * (share + 1) // shares[tile] * keys
    behind = np.minimum(behind, end[tile])
    slot = np.where(shares[tile] > 1, partial[tile] + share * count[tile], -1)
    row = parts.row[part] + first
    entries = np.empty((len(tile), ENTRY_COLUMNS), np.int64)
    columns = (row, position, count, parts.table[part])
    for number, column in enumerate(columns):
        entries[:, number] = column[tile]
    for number, column in enumerate((begin, behind, slot, share == 0), len(columns)):
        entries[:, number] = column
    # The longest first, so that the programs that start last are short.
    entries = entries[np.argsort(begin - behind, kind="stable")]

    split = np.flatnonzero(shares > 1)
    tile = np.repeat(split, count[split])
    token = _counted_within(count[split])
    merges = np.stack([row[tile] + token, partial[tile] + token, count[tile], shares[tile]], axis=1)
    return WorkList(entries, merges, int(partials.sum()))


def _most_blocks(blocks: Numbers, programs: int, least: int) -> int:
    """Chooses how many key blocks a share has at most.

    Chooses the fewest with which all shares run at once. If that is more than twice the mean,
    chooses the mean over n shares, n being the larger of the programs and the tiles. With most =
    ceil(total / n) and n >= tiles, shares * most <= total + tiles * (most - 1) <= 2 * total.
    """

    def share_count(most: int) -> int:
        return int((-(-blocks // most)).sum())

    total, longest = int(blocks.sum()), int(blocks.max(initial=1))
    most = longest
    if len(blocks) < programs:
        fewest = -(-total // programs)
        sizes = range(fewest, longest + 1)
        most = sizes[bisect_left(sizes, x=True, key=lambda each: share_count(each) <= programs)]
    if most * share_count(most) > 2 * total:
        most = -(-total // max(programs, len(blocks)))
    return max(most, least)


def _counted_within(counts: Numbers) -> Numbers:
    """Counts from zero within each group: 0 1 2, 0 1 for groups of three and two."""
    ends = counts.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    counted: Numbers = np.arange(total) - np.repeat(ends - counts, counts)
    return counted


class Occupancy(NamedTuple):
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

    def __init__(self, step: Step, shape: KernelShape, room: Occupancy) -> None:
        """Takes a step; sends nothing before the first :meth:`work`."""
        self._step = step
        self._shape = shape
        self._room = room
        self._parts: StepParts | None = None
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
        parts = StepParts(counts.cumsum() - counts, starts, counts, update.offsets)
        spots = update.offsets * step.pool.layout.page_tokens
        spots = np.repeat(spots + starts - parts.row, counts) + np.arange(step.token_count)
        before = [update.places, update.distances, spots]
        work, (places, new, self.spots) = self._send_work(parts, group, window, before)
        distances.write(update, places, new)
        self.pages = distances.array
        self._parts = parts
        return work

    def _send_work(
        self, parts: StepParts, group: int, window: int | None, before: list[Numbers]
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

    def _plan(self, parts: StepParts, group: int, window: int | None) -> tuple[WorkList, WorkList]:
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
