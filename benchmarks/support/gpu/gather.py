"""The speed of copying pages out of the store, beside a plain copy of as many bytes."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from inference_worker.model.model import PagedModel
from inference_worker.pages.block_table import BlockTable
from inference_worker.pages.layout import PageRef
from inference_worker.pages.pool import PagePool
from kvstore_client import Namespace
from support.gpu.plan import PAGE_TOKENS, Plan, synchronize

# Copies that are timed as one, so that the launch of the first hardly counts.
COPIES = 8


def measure_gather(plan: Plan, model: PagedModel, namespace: Namespace) -> dict[str, Any]:
    """Returns GB/s of each way, and each way's share of the plain copy: medians over the rounds.

    Pages have the model's layout, in slots of the store in random order. ``pages`` gathers whole
    pages. ``rows`` gathers the keys and values layer by layer, like attention without kernels. A
    byte that is read and written counts once.
    """
    count = plan.gather_tokens // PAGE_TOKENS
    layout = model.layout(PAGE_TOKENS)
    with namespace.acquire(range(plan.gather_tokens + 1), total_page_count=count) as acquired:
        if acquired.reservation is None or acquired.match.pages:
            raise RuntimeError(f"no pages to gather: {acquired.failure}")
        refs = [PageRef(page.extent_id, page.slot) for page in acquired.reservation.pages]
        order = torch.randperm(count, generator=torch.Generator().manual_seed(1)).tolist()
        (extent,) = {ref.extent for ref in refs}
        pages = namespace.extent_tensor(extent)
        pool = PagePool(layout, model.device)
        pool.add_extent(extent, pages)
        table = BlockTable(PAGE_TOKENS, [refs[n] for n in order])
        # Whole words of any value, because only bytes are copied.
        words = pages.flatten(1).view(torch.int64)
        slots = table.slots.to(model.device)
        rows = pool.page_rows(table.extents, table.slots)
        source, target = (torch.zeros_like(words[:count]) for _ in range(2))

        def copy() -> None:
            target.copy_(source)

        def gather_pages() -> None:
            torch.index_select(words, 0, slots, out=target)

        def gather_rows() -> None:
            for layer in range(layout.layer_count):
                pool.gather(layer, rows)

        ways = {"copy": copy, "pages": gather_pages, "rows": gather_rows}
        rounds = [
            {name: _seconds(way, plan.device) for name, way in ways.items()}
            for _ in range(plan.rounds + 1)
        ][1:]
        moved = count * layout.page_bytes
    return {
        "bytes": moved,
        "pages": count,
        "ways": [
            {
                "way": name,
                "gb_s": moved / median(each[name] for each in rounds) / 1e9,
                "share_of_copy": median(each["copy"] / each[name] for each in rounds),
            }
            for name in ways
        ],
    }


def _seconds(way: Callable[[], None], device: str) -> float:
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(COPIES):
        way()
    synchronize(device)
    return (time.perf_counter() - begin) / COPIES
