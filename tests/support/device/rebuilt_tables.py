"""A step's tables as they were before: built anew in each step, page by page of each table."""

import torch

from inference_worker.attention.step import Step
from inference_worker.pages.block_table import BlockTable
from inference_worker.pages.distances import UNIT_BYTES
from inference_worker.pages.pool import PagePool


def addresses(pool: PagePool, table: BlockTable) -> torch.Tensor:
    """Returns the address of each page: int64 ``[pages]``."""
    distinct = table.extents.unique().tolist()
    begins = torch.tensor([pool.rows(each).data_ptr() for each in distinct], dtype=torch.int64)
    keys = torch.tensor(distinct, dtype=torch.int64)
    return begins[torch.searchsorted(keys, table.extents)] + table.slots * pool.layout.page_bytes


def rebuilt_tables(step: Step) -> torch.Tensor:
    """Builds all inputs of a step's kernels but the work: parts, pages and places in one array.

    From ``KernelAttention`` as it was before work lists; pages are counted from the first.
    """
    pool, layout = step.pool, step.pool.layout
    base = pool.page(step.parts[0].table[0])
    unit = UNIT_BYTES // base.element_size()
    parts, pages, places = [], [], []
    begin = page_count = 0
    for part in step.parts:
        distances = (addresses(pool, part.table) - base.data_ptr()) // UNIT_BYTES
        positions = torch.arange(part.start, part.end)
        within = positions % layout.page_tokens * (layout.token_values // unit)
        places.append(distances[positions // layout.page_tokens] + within)
        pages.append(distances[: layout.pages_for(part.end)])
        parts.append(torch.tensor([begin, part.start, part.end, page_count]))
        begin += part.count
        page_count += pages[-1].shape[0]
    return torch.cat([*parts, *pages, *places])
