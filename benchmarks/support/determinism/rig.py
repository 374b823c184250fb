"""A model on pages of its own, with contexts in any cut, continued alone or together."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import torch

from inference_worker.attention.step import Step, StepPart
from inference_worker.model.model import PagedModel
from inference_worker.pages.block_table import BlockTable
from inference_worker.pages.layout import PageRef
from inference_worker.pages.pool import PagePool

PAGE_TOKENS: Final = 16
# Tokens of a step that computes a context at once, like the engine's longest step.
STEP_TOKENS: Final = 512


class DeterminismRig:
    """Sequences of the same texts, each computed many times. One thread uses it."""

    def __init__(self, model: PagedModel, texts: Sequence[torch.Tensor]) -> None:
        """Makes room for one copy of each text, ids int64 ``[tokens]``."""
        self._model = model
        self._texts = texts
        self._pool = PagePool(model.layout(PAGE_TOKENS), model.device)
        layout = self._pool.layout
        counts = [layout.pages_for(text.shape[0]) for text in texts]
        self._pool.add_extent(0, torch.zeros((sum(counts), *layout.page_shape)))
        slots = iter(range(sum(counts)))
        self._tables = [
            BlockTable(PAGE_TOKENS, [PageRef(0, next(slots)) for _ in range(count)])
            for count in counts
        ]

    def prefill(self, text: int, end: int, cuts: Sequence[int]) -> torch.Tensor:
        """Computes ``[0, end)`` in steps that also end at ``cuts``. Returns the last row."""
        logits = torch.empty(0)
        bounds = [0, *(cut for cut in cuts if 0 < cut < end), end]
        for start, stop in pairwise(bounds):
            logits = self.compute([(text, start, stop)])
        return logits

    def compute(self, parts: Sequence[tuple[int, int, int]]) -> torch.Tensor:
        """Runs one step of ``(text, start, end)``. Returns float32 ``[parts, vocabulary]``."""
        step = Step(
            self._pool,
            tuple(
                StepPart(table=self._tables[text], start=start, count=end - start)
                for text, start, end in parts
            ),
        )
        return self._model.forward(
            step, torch.cat([self._texts[text][start:end] for text, start, end in parts])
        )
