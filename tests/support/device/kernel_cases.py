"""Ragged steps over pages of several extents, to be attended to in two ways."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from inference_worker.attention.attention import StepAttention, Terms
from inference_worker.attention.step import Step, StepPart
from inference_worker.pages.block_table import BlockTable
from inference_worker.pages.layout import PageLayout, PageRef
from inference_worker.pages.pool import PagePool

EXTENTS = (0, 7, -1)
LAYERS = 2
# Of answers that are about as large as one: what rounding of probabilities and values comes to.
# Tensor cores take float32 in three parts, and lose a little.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 6e-2}


class Case(NamedTuple):
    """A step: its pages, its heads, and its parts as (tokens before, tokens computed)."""

    page_tokens: int
    kv_heads: int
    group: int
    head_dim: int
    parts: Sequence[tuple[int, int]]
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    dtype: str = "float32"
    seed: int = 0


# Page sizes from 1 to 64, groups and heads that are no powers of two, decodes beside prefills.
CASES = {
    "cold": Case(16, 2, 2, 32, [(0, 40)]),
    "pages of one token": Case(1, 2, 3, 20, [(5, 1), (0, 7), (33, 20)]),
    "pages of 64": Case(64, 1, 4, 16, [(100, 1), (0, 70)]),
    "pages of seven, a window and a softcap": Case(7, 2, 1, 64, [(100, 1), (9, 70)], 20, 2.0),
    "one decode": Case(16, 2, 4, 32, [(700, 1)]),
    "long decodes": Case(16, 2, 4, 32, [(700, 1), (600, 3)], softcap=2.0),
    "sinks": Case(16, 2, 4, 32, [(700, 1), (600, 3)], has_sinks=True),
    "sinks and a window": Case(16, 2, 4, 32, [(700, 1), (620, 3)], 500, has_sinks=True),
    "a window of three": Case(16, 2, 5, 32, [(700, 1), (0, 30)], 3),
    "one long among short": Case(16, 1, 4, 32, [(9100, 1), (5, 1), (30, 1), (4100, 2)]),
    "a chunk behind a long prefix": Case(16, 1, 2, 32, [(2000, 70), (300, 1)], has_sinks=True),
    "one kv head for many": Case(16, 1, 24, 32, [(30, 9)]),
    "float16": Case(16, 2, 4, 64, [(70, 1), (60, 30)], dtype="float16"),
}


class Outcome(NamedTuple):
    """The result of attending: the answer, and the extents' contents afterwards."""

    answer: torch.Tensor
    extents: list[torch.Tensor]


def attend(case: Case, how: Callable[[Step], StepAttention], device: str = "cpu") -> Outcome:
    """Attends for one layer of a step, the same for each call with a case.

    Pages lie in three extents, in no order, and every slot begins as random numbers: as what was
    matched, and as what a slot holds before it is written.
    """
    made = torch.Generator().manual_seed(case.seed)
    dtype: torch.dtype = getattr(torch, case.dtype)
    layout = PageLayout(LAYERS, case.kv_heads, case.head_dim, case.dtype, case.page_tokens)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=made).to(device, dtype)

    counts = [layout.pages_for(before + count) for before, count in case.parts]
    slots = sum(counts) // 2 + 2
    pool = PagePool(layout, device)
    for extent in EXTENTS:
        pool.add_extent(extent, numbers(slots, *layout.page_shape))
    places = [PageRef(extent, slot) for slot in range(slots) for extent in EXTENTS]
    order = iter(torch.randperm(len(places), generator=made).tolist())
    parts = tuple(
        StepPart(
            table=BlockTable(case.page_tokens, [places[next(order)] for _ in range(pages)]),
            start=before,
            count=count,
        )
        for (before, count), pages in zip(case.parts, counts, strict=True)
    )
    tokens = sum(part.count for part in parts)
    heads = case.kv_heads * case.group
    query, key, value = (
        numbers(tokens, each, case.head_dim).transpose(0, 1)
        for each in (heads, case.kv_heads, case.kv_heads)
    )
    sinks = numbers(heads) if case.has_sinks else None
    terms = Terms(scale=0.2, window=case.window, softcap=case.softcap, sinks=sinks)
    answer = how(Step(pool, parts)).attend(1, query, key, value, terms)
    return Outcome(answer, [pool.rows(extent) for extent in EXTENTS])


def assert_same(got: Outcome, wanted: Outcome) -> None:
    """Fails unless the same was written everywhere, and the answers differ by rounding alone."""
    for mine, theirs in zip(got.extents, wanted.extents, strict=True):
        assert torch.equal(mine, theirs)
    assert got.answer.shape == wanted.answer.shape
    assert got.answer.is_contiguous()
    assert (
        float((got.answer.float() - wanted.answer.float()).abs().max())
        < TOLERANCE[wanted.answer.dtype]
    )
