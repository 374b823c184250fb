"""The choice of the next token from a model's logits."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from inference_worker.engine.request import GREEDY, SamplingOptions

# Others take the options from here too.
__all__ = ["GREEDY", "SampledToken", "Sampler", "SamplingOptions"]


class SampledToken(NamedTuple):
    """The token chosen, and the best one. Only ``argmax`` may be stored as a next token."""

    token: int
    argmax: int


class Sampler:
    """Chooses the tokens of one request, in order, with its own random generator.

    Not thread-safe.
    """

    def __init__(self, options: SamplingOptions) -> None:
        """Starts at the seed."""
        self._options = options
        self._generator = torch.Generator()
        if options.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(options.seed)
        self._warpers = LogitsProcessorList()
        if not options.is_greedy:
            self._warpers.append(TemperatureLogitsWarper(float(options.temperature)))
            if options.top_k:
                self._warpers.append(TopKLogitsWarper(options.top_k))
            if options.top_p < 1:
                self._warpers.append(TopPLogitsWarper(options.top_p))

    def choose(self, logits: torch.Tensor) -> SampledToken:
        """Chooses from raw logits ``[vocabulary]``, on any device; waits for that device.

        Raises the error of a draw.
        """
        (choice,) = choose_all(logits.unsqueeze(0), [self])
        if isinstance(choice, Exception):
            raise choice
        return choice

    @property
    def is_greedy(self) -> bool:
        """True if it always chooses the best token, and draws nothing."""
        return self._options.is_greedy

    def draw(self, logits: torch.Tensor) -> int:
        """Draws a token from raw logits ``[1, vocabulary]``, float32 on the CPU.

        Raises ``RuntimeError`` if they are no distribution, such as NaN.
        """
        scores = self._warpers(None, logits)
        return int(torch.multinomial(scores.softmax(-1), 1, generator=self._generator))


def choose_all(logits: torch.Tensor, samplers: Sequence[Sampler]) -> list[SampledToken | Exception]:
    """Chooses for each request of a batch from its row of raw logits ``[rows, vocabulary]``.

    The best tokens of all rows are found at once. A request that draws uses its own row only, so a
    seed gives the same tokens in a batch as without one. A draw that fails returns its error in its
    place and does not affect the others. Waits for the logits' device. Raises ``ValueError`` if the
    numbers of rows and samplers differ.
    """
    best: list[int] = logits.argmax(-1).tolist()
    chosen: list[SampledToken | Exception] = [SampledToken(token, token) for token in best]
    pairs = enumerate(zip(best, samplers, strict=True))
    drawing = [row for row, (_, sampler) in pairs if not sampler.is_greedy]
    if drawing:
        # On the CPU, whose generator gives the same numbers on every machine.
        drawn_from = logits[drawing].float().cpu().split(1)
        for row, scores in zip(drawing, drawn_from, strict=True):
            try:
                chosen[row] = SampledToken(samplers[row].draw(scores), best[row])
            except Exception as error:  # noqa: BLE001 - fails this row only
                chosen[row] = error
    return chosen
