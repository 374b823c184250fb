"""What a request says about the choice of its tokens, in processes without torch too."""

from dataclasses import dataclass
from typing import Final

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
        """Refuses what no distribution follows from."""
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
