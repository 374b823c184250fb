"""A step lays out its parts' tokens one after the other."""

import pytest
import torch

from inference_worker.attention.step import Step, StepPart
from inference_worker.pages.block_table import BlockTable
from inference_worker.pages.layout import PageLayout, PageRef
from inference_worker.pages.pool import PagePool

POOL = PagePool(PageLayout(1, 1, 2, "float32", 4))


def table(pages: int) -> BlockTable:
    """Returns a table of some pages, at any place."""
    return BlockTable(4, [PageRef(0, slot) for slot in range(pages)])


def test_positions_and_rows_follow_the_parts() -> None:
    """Positions count within each sequence, and rows count within the step."""
    step = Step(
        POOL,
        (
            StepPart(table=table(2), start=5, count=3),
            StepPart(table=table(1), start=0, count=2, wants_logits=False),
            StepPart(table=table(3), start=11, count=1),
        ),
    )
    assert step.token_count == 6
    assert torch.equal(step.position_ids(), torch.tensor([[5, 6, 7, 0, 1, 11]]))
    assert step.logit_rows().tolist() == [2, 5]


@pytest.mark.parametrize(("start", "count"), [(0, 0), (-1, 2), (0, 9), (8, 1)])
def test_tokens_outside_the_pages_are_refused(start: int, count: int) -> None:
    """A part needs at least one token, and a page for each token."""
    with pytest.raises(ValueError, match="table of 8 tokens"):
        Step(POOL, (StepPart(table=table(2), start=start, count=count),))


def test_pages_of_another_size_are_refused() -> None:
    """A table must use the pool's page size."""
    other = BlockTable(8, [PageRef(0, 0)])
    with pytest.raises(ValueError, match="another size"):
        Step(POOL, (StepPart(table=other, start=0, count=2),))


def test_a_step_without_parts_is_refused() -> None:
    """A step without parts is refused, because it computes nothing."""
    with pytest.raises(ValueError, match="one part"):
        Step(POOL, ())
