"""How the next token is chosen from a model's logits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

# As vLLM has it: dividing by less overflows, and nothing but the best token would ever be drawn.
GREEDY_BELOW: Final = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """What a request says about the choice of its tokens.

    ``temperature`` 0 is greedy, whatever the rest says. Otherwise the logits are divided by it,
    the ``top_k`` best are kept (0: all), then the fewest of them whose probabilities add up to
    ``top_p``, and one is drawn: the order of transformers and of vLLM. ``seed`` makes the draws
    the same each time; without one they differ.
    Raises ``ValueError`` for a value that makes no sense.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no distribution follows from."""
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"a temperature is 0 or more, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is above 0 and at most 1, not {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k is 0, for all, or more, not {self.top_k}")
        if self.seed is not None and not 0 <= self.seed < 1 << 63:
            raise ValueError(f"a seed has 63 bits, not {self.seed}")

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is taken each time: then a stored next token may be used."""
        return self.temperature < GREEDY_BELOW


GREEDY: Final = SamplingOptions()


class Choice(NamedTuple):
    """The token chosen, and the best one: only ``argmax`` may ever be stored as a next token."""

    token: int
    argmax: int


class Sampler:
    """Chooses the tokens of one request, in order; its draws are of a generator of its own.

    Not thread-safe.
    """

    def __init__(self, options: SamplingOptions) -> None:
        """Start at the seed."""
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

    def choose(self, logits: torch.Tensor) -> Choice:
        """Choose from raw logits ``[vocabulary]``, on any device; waits for that device."""
        return choose_all(logits.unsqueeze(0), [self])[0]

    @property
    def is_greedy(self) -> bool:
        """Whether it takes the best token each time, and draws nothing."""
        return self._options.is_greedy

    def draw(self, logits: torch.Tensor) -> int:
        """Draw a token from raw logits ``[1, vocabulary]``, float32 on the CPU."""
        scores = self._warpers(None, logits)
        return int(torch.multinomial(scores.softmax(-1), 1, generator=self._generator))


def choose_all(logits: torch.Tensor, samplers: Sequence[Sampler]) -> list[Choice]:
    """Choose for each request of a batch from its row of raw logits ``[rows, vocabulary]``.

    The best tokens of all rows are looked for at once; who draws does so from its row alone, so
    that a seed gives the same tokens in a batch as without one. Waits for the logits' device.
    Raises ``ValueError`` where there are not as many rows as samplers.
    """
    best: list[int] = logits.argmax(-1).tolist()
    chosen = [Choice(token, token) for token in best]
    pairs = enumerate(zip(best, samplers, strict=True))
    drawing = [row for row, (_, sampler) in pairs if not sampler.is_greedy]
    if drawing:
        # On the CPU, whose generator gives the same on every machine.
        drawn_from = logits[drawing].float().cpu().split(1)
        for row, scores in zip(drawing, drawn_from, strict=True):
            chosen[row] = Choice(samplers[row].draw(scores), best[row])
    return chosen
