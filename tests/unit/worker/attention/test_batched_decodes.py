"""Sequences that decode together attend as each does alone, for every kind of layer."""

from typing import Any

import pytest
import torch

from device.kernel_cases import CASES, Case, attend
from inference_worker.attention.attention import Terms
from inference_worker.attention.gathered import GatheredAttention
from inference_worker.attention.step import Step

TOLERANCE = 2e-5
# Lengths around one token and whole pages, so different that they are not padded together.
LENGTHS = [0, 1, 15, 16, 17, 31, 250, 251, 255, 256, 300, 700, 701, 40, 41]
DECODES = [(before, 1) for before in LENGTHS]

BATCHES = {
    "full": Case(16, 2, 2, 32, DECODES),
    "a window": Case(16, 2, 3, 20, DECODES, 33),
    "a window of one": Case(16, 2, 3, 20, DECODES, 1),
    "a softcap": Case(7, 1, 4, 16, DECODES, softcap=2.0),
    "sinks": Case(16, 2, 4, 16, DECODES, has_sinks=True),
    "all of them": Case(16, 2, 4, 16, DECODES, 20, 2.0, has_sinks=True),
    "pages of one token": Case(1, 2, 2, 16, DECODES[:8]),
    "beside prefills": Case(16, 2, 2, 16, [(30, 9), (40, 1), (0, 20), (90, 1), (17, 1)], 25),
}


class NaiveAttention:
    """Attends query by query and head by head, and reads each position through the table."""

    def __init__(self, step: Step) -> None:
        """Attends for the parts of ``step``."""
        self._step = step

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, terms: Terms
    ) -> torch.Tensor:
        """Attends step by step, in the order of the contract's sentences."""
        pool, size = self._step.pool, self._step.pool.layout.page_tokens
        answer = torch.empty_like(query.transpose(0, 1)).contiguous()
        row = 0
        for part in self._step.parts:
            for position in range(part.start, part.end):
                page = pool.page(part.table[position // size])
                page[layer, 0, position % size] = key[:, row]
                page[layer, 1, position % size] = value[:, row]
                first = 0 if terms.window is None else max(0, position - terms.window + 1)
                seen = [
                    pool.page(part.table[at // size])[layer, :, at % size]
                    for at in range(first, position + 1)
                ]
                keys, values = torch.stack(seen, dim=1)
                group = query.shape[0] // keys.shape[1]
                for head in range(query.shape[0]):
                    scores = keys[:, head // group] @ query[head, row] * terms.scale
                    if terms.softcap is not None:
                        scores = torch.tanh(scores / terms.softcap) * terms.softcap
                    if terms.sinks is not None:
                        scores = torch.cat([scores, terms.sinks[head : head + 1]])
                    weights = torch.softmax(scores, dim=0)[: len(seen)]
                    answer[row, head] = weights @ values[:, head // group]
                row += 1
        return answer


@pytest.mark.parametrize("case", BATCHES.values(), ids=BATCHES)
def test_a_batch_attends_as_one_query_after_the_other(case: Case) -> None:
    """A batch writes the pages of naive attention, and its answers differ by rounding alone."""
    got, wanted = attend(case, GatheredAttention), attend(case, NaiveAttention)
    for mine, theirs in zip(got.extents, wanted.extents, strict=True):
        assert torch.equal(mine, theirs)
    assert got.answer.is_contiguous()
    assert float((got.answer - wanted.answer).abs().max()) < TOLERANCE


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.dtype == "float32"])
def test_what_kernels_are_compared_with_is_right(name: str) -> None:
    """Gathered attention, with which the kernels are compared, agrees with naive attention."""
    got, wanted = attend(CASES[name], GatheredAttention), attend(CASES[name], NaiveAttention)
    assert float((got.answer - wanted.answer).abs().max()) < TOLERANCE


def test_a_batch_reads_nothing_beyond_its_sequences(rig: Any, text_ids: Any) -> None:  # noqa: ANN401 - a conftest's
    """The unused rest of a sequence's last page has no effect, even if it is NaN."""
    prompts = [text_ids(length, length) for length in (3, 18, 90)]
    tables = [rig.table(len(ids)) for ids in prompts]
    for table in tables:
        for page in table:
            rig.pool.page(page).fill_(torch.nan)
    rig.compute(*((t, 0, ids[:-1]) for t, ids in zip(tables, prompts, strict=True)))
    got = rig.compute(*((t, len(i) - 1, i[-1:]) for t, i in zip(tables, prompts, strict=True)))
    rig.assert_close(got, torch.cat([rig.expect(ids) for ids in prompts]))
