"""Steps whose pages lie tens of GiB apart, for two ways of attention.

On a CPU the memory is one mapping; a case touches only the pages that it uses.
"""

import mmap
import os
from collections.abc import Callable

import torch

from device.kernel_cases import EXTENTS, LAYERS, Case, Outcome
from inference_worker.attention.attention import StepAttention, Terms
from inference_worker.attention.step import Step, StepPart
from inference_worker.pages.block_table import BlockTable
from inference_worker.pages.layout import PageLayout, PageRef
from inference_worker.pages.pool import PagePool

GIB = 1 << 30
# The first and the last page are more than 2^31 units of 16 bytes apart, the kernels' largest
# count; within an extent, pages are more than 2^32 numbers of two bytes apart.
EXTENT_BYTES = 12 * GIB
FAR_BYTES = len(EXTENTS) * EXTENT_BYTES
# Slots in use at each end of each extent.
SLOTS = 4
# Two sequences whose 12 pages each lie at both ends of all extents.
FAR_CASES = {
    "float32": Case(16, 2, 4, 32, [(180, 12), (150, 1)]),
    "float16": Case(16, 2, 4, 64, [(180, 12), (150, 1)], dtype="float16"),
    "a window": Case(16, 2, 4, 32, [(180, 12), (150, 1)], window=40),
}


def far_memory(device: str) -> torch.Tensor:
    """Returns ``FAR_BYTES`` of uint8; on a CPU only touched pages use memory."""
    if device != "cpu":
        return torch.empty(FAR_BYTES, dtype=torch.uint8, device=device)
    descriptor = os.memfd_create("far pages")
    os.truncate(descriptor, FAR_BYTES)
    mapped = mmap.mmap(descriptor, FAR_BYTES)
    os.close(descriptor)
    # A huge page would touch 2 MiB for each page of a case.
    mapped.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(mapped, dtype=torch.uint8)


def near_memory(case: Case, device: str) -> torch.Tensor:
    """Returns memory of uint8 only for the slots that a case uses."""
    size = len(EXTENTS) * 2 * SLOTS * _layout(case).page_bytes
    return torch.empty(size, dtype=torch.uint8, device=device)


def attend_within(
    case: Case, how: Callable[[Step], StepAttention], memory: torch.Tensor
) -> Outcome:
    """Attends for one layer of a step on pages at both ends of each third of ``memory``.

    The step is the same for each call with a case, wherever its pages lie. The outcome has the
    slots in use of each extent.
    """
    made = torch.Generator().manual_seed(case.seed)
    dtype: torch.dtype = getattr(torch, case.dtype)
    device = memory.device
    layout = _layout(case)
    extent_bytes = memory.nbytes // len(EXTENTS)
    pool = PagePool(layout, device)
    slot_count = extent_bytes // layout.page_bytes
    used = [*range(SLOTS), *range(slot_count - SLOTS, slot_count)]
    for number, extent in enumerate(EXTENTS):
        begin = number * extent_bytes
        raw = memory[begin : begin + slot_count * layout.page_bytes]
        pages = raw.view(dtype).view(slot_count, *layout.page_shape)
        pool.add_extent(extent, pages)
        for slot in used:
            pages[slot].copy_(torch.randn(layout.page_shape, generator=made))
    places = [PageRef(extent, slot) for slot in used for extent in EXTENTS]
    # The first page begins the memory and the next one ends it.
    between = 1 + torch.randperm(len(places) - 2, generator=made)
    order = iter([0, len(places) - 1, *between.tolist()])
    parts = tuple(
        StepPart(
            table=BlockTable(
                case.page_tokens,
                [places[next(order)] for _ in range(layout.pages_for(before + count))],
            ),
            start=before,
            count=count,
        )
        for before, count in case.parts
    )
    tokens = sum(part.count for part in parts)
    query, key, value = (
        torch.randn((tokens, heads, case.head_dim), generator=made)
        .to(device, dtype)
        .transpose(0, 1)
        for heads in (case.kv_heads * case.group, case.kv_heads, case.kv_heads)
    )
    terms = Terms(scale=0.2, window=case.window, softcap=case.softcap, sinks=None)
    answer = how(Step(pool, parts)).attend(1, query, key, value, terms)
    kept = [torch.stack([pool.page(PageRef(extent, slot)) for slot in used]) for extent in EXTENTS]
    return Outcome(answer, kept)


def _layout(case: Case) -> PageLayout:
    return PageLayout(LAYERS, case.kv_heads, case.head_dim, case.dtype, case.page_tokens)
