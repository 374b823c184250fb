"""A step's tables equal tables built anew."""

import pytest
import torch

from device.rebuilt_tables import rebuilt_tables
from inference_worker.attention.kernel_shape import KernelShape
from inference_worker.attention.step import Step, StepPart
from inference_worker.attention.step_tables import Occupancy, StepTables
from inference_worker.errors import UnknownExtentError
from inference_worker.pages.block_table import BlockTable
from inference_worker.pages.distances import UNIT_BYTES
from inference_worker.pages.layout import PageLayout, PageRef
from inference_worker.pages.pool import PagePool

LAYOUT = PageLayout(1, 8, 4, "float32", 16)
GROUP = 4
# An H200's: four programs a multiprocessor for decodes, one for prefills.
ROOM = Occupancy(528, 132)


class Sequences:
    """Sequences that grow by a token a step, on pages of two extents in random order."""

    def __init__(self, lengths: list[int], spare_pages: int) -> None:
        """Begins behind the given number of tokens for each sequence."""
        counts = [LAYOUT.pages_for(length) for length in lengths]
        slots = (sum(counts) + spare_pages) // 2 + 1
        self.pool = PagePool(LAYOUT)
        for extent in (0, 7):
            self.pool.add_extent(extent, torch.zeros(slots, *LAYOUT.page_shape))
        order = torch.randperm(2 * slots, generator=torch.Generator().manual_seed(1)).tolist()
        self._unused = iter([PageRef((0, 7)[number % 2], number // 2) for number in order])
        self._lengths = lengths
        self.tables = [
            BlockTable(LAYOUT.page_tokens, [next(self._unused) for _ in range(count)])
            for count in counts
        ]

    def step(self, counts: list[int] | None = None) -> Step:
        """Returns the next step: a token of each sequence, or ``counts``."""
        parts = []
        for number, table in enumerate(self.tables):
            start, count = self._lengths[number], 1 if counts is None else counts[number]
            while table.token_capacity < start + count:
                table.append(next(self._unused))
            parts.append(StepPart(table=table, start=start, count=count))
            self._lengths[number] = start + count
        return Step(self.pool, tuple(parts))


def made(step: Step) -> StepTables:
    """Makes a step's tables in the same way as attention does before its first layer."""
    tables = StepTables(step, KernelShape(), ROOM)
    tables.work(GROUP, None)
    return tables


def test_every_token_is_written_where_rebuilt_tables_say() -> None:
    """Consecutive steps of decodes and prefills agree with rebuilt tables."""
    sequences = Sequences([0, 5, 4095, 100], spare_pages=40)
    for counts in ([40, 1, 1, 3], [1, 1, 1, 1], [1, 20, 17, 1], [1, 1, 1, 400]):
        step = sequences.step(counts)
        tables = made(step)
        rebuilt = rebuilt_tables(step)
        places = rebuilt[-step.token_count :]
        first = sequences.pool.page(step.parts[0].table[0]).data_ptr()
        units = LAYOUT.token_bytes // UNIT_BYTES
        page_tokens = LAYOUT.page_tokens
        mine = tables.pages[tables.spots // page_tokens] + tables.spots % page_tokens * units
        offset = (first - sequences.pool.distances.base.data_ptr()) // UNIT_BYTES
        assert torch.equal(mine - offset, places)


def test_every_page_of_the_work_is_the_sequence_s() -> None:
    """A work entry's row of distances has the pages of the sequence that its queries belong to."""
    sequences = Sequences([0, 5000, 9000], spare_pages=40)
    step = sequences.step([40, 3, 1])
    tables = made(step)
    work = tables.work(GROUP, None)
    base = sequences.pool.distances.base.data_ptr()
    for row, position, _, offset, *_ in [*work.decodes.tolist(), *work.prefills.tolist()]:
        (part,) = [
            part
            for part, begin in zip(step.parts, (0, 40, 43), strict=True)
            if begin <= row < begin + part.count and position == part.start + row - begin
        ]
        found = tables.pages[offset : offset + len(part.table)] * UNIT_BYTES + base
        assert found.tolist() == [sequences.pool.page(page).data_ptr() for page in part.table]


def test_decodes_and_prefills_are_apart() -> None:
    """Short and long parts have lists of their own, and share the partial results."""
    sequences = Sequences([9000, 9000, 20], spare_pages=60)
    work = StepTables(sequences.step([1, 60, 4]), KernelShape(), ROOM).work(GROUP, None)
    assert {int(row) for row in work.decodes[:, 0]} == {0, 61}
    assert {int(row) for row in work.prefills[:, 0]} == {1, 33}
    partials = work.merges[:, 1:].tolist()
    taken = [first + i * stride for first, stride, count in partials for i in range(count)]
    assert sorted(taken) == list(range(work.partial_count))


def test_each_window_has_work_of_its_own() -> None:
    """Keys outside a window are not read, and a step plans each window once."""
    sequences = Sequences([5000], spare_pages=4)
    tables = StepTables(sequences.step(), KernelShape(), ROOM)
    whole, windowed = tables.work(GROUP, None), tables.work(GROUP, 100)
    assert int((whole.decodes[:, 5] - whole.decodes[:, 4]).sum()) == 5001
    assert int((windowed.decodes[:, 5] - windowed.decodes[:, 4]).sum()) <= 164
    assert tables.work(GROUP, 100) is windowed


def test_a_page_that_is_not_mapped_is_refused() -> None:
    """A step with a page that is not mapped launches nothing."""
    sequences = Sequences([50], spare_pages=4)
    step = sequences.step()
    sequences.pool.remove_extent(0)
    with pytest.raises(UnknownExtentError):
        made(step)
