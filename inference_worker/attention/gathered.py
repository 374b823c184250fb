"""Attention that copies a layer's pages out before it attends: for a CPU, and to fall back to."""

import torch

from inference_worker.attention.attention import Terms
from inference_worker.attention.readings import Reading, decode_readings, prefill_reading
from inference_worker.engine.step import Step


class GatheredAttention:
    """Gathers keys and values for the layer at hand; nothing of it stays.

    Sequences that compute one token attend together, the others one by one. What is the same in
    each layer is looked up once a step.
    Knows every device, page size and head size. One engine thread uses it, for one step.
    """

    def __init__(self, step: Step) -> None:
        """Attends for the parts of ``step``."""
        self._step = step
        self._writes = step.pool.token_rows(
            (part.table, part.start, part.end) for part in step.parts
        )
        self._readings: dict[int | None, list[Reading]] = {}

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        terms: Terms,
    ) -> torch.Tensor:
        """Attends as :meth:`~inference_worker.attention.attention.StepAttention.attend` says."""
        self._step.pool.write(layer, self._writes, key.transpose(0, 1), value.transpose(0, 1))
        answer = torch.empty_like(query.transpose(0, 1), memory_format=torch.contiguous_format)
        for reading in self._readings_of(terms.window):
            reading.attend(layer, query, answer, terms)
        return answer

    def _readings_of(self, window: int | None) -> list[Reading]:
        """Plans what is read in layers of this window, once a step."""
        if window not in self._readings:
            pool = self._step.pool
            found: list[Reading] = []
            decodes, begins = [], []
            begin = 0
            for part in self._step.parts:
                if part.count == 1:
                    decodes.append(part)
                    begins.append(begin)
                else:
                    found.append(prefill_reading(pool, part, begin, window))
                begin += part.count
            if decodes:
                found += decode_readings(pool, decodes, begins, window)
            self._readings[window] = found
        return self._readings[window]
