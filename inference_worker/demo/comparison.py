"""Comparison of a worker's tokens with stock transformers, and of its hits with an ideal store.

"Identical" is meant literally. A differing token is accepted only at a near tie: if the reference's
own best two logits differ by less than ``NEAR_TIE``, either is greedy, and the reference continues
from ours. Such tokens are counted, and more than ``ACCEPTED_SHARE`` of a run's tokens are a
failure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from inference_worker.pages.acquisition import LEAST_COPIED

NEAR_TIE: Final = 1e-3
ACCEPTED_SHARE: Final = 0.01

Ask = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Comparison:
    """The reference's ids for one request, and the near ties at which ours differ."""

    reference_ids: list[int]
    stock_ttft_ms: float
    near_ties: list[tuple[int, float]]
    identical: bool


def compare(reference: Ask, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> Comparison:
    """Asks the reference for as many ids, and compares them, continuing from ours at near ties.

    ``reference`` takes ``prompt_ids``, ``max_tokens`` and ``forced_ids`` and answers as
    :mod:`inference_worker.demo.reference` does.
    """
    ours = list(output_ids)
    answer = reference(prompt_ids=list(prompt_ids), max_tokens=len(ours))
    ttft_ms: float = answer["ttft_ms"]
    near_ties: list[tuple[int, float]] = []
    while True:
        theirs: list[int] = answer["output_ids"]
        place = next((i for i, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), None)  # noqa: B905 - the same number was asked for
        if place is None:
            return Comparison(theirs, ttft_ms, near_ties, identical=True)
        gap: float = answer["gaps"][place]
        if gap >= NEAR_TIE:
            return Comparison(theirs, ttft_ms, near_ties, identical=False)
        near_ties.append((place, gap))
        answer = reference(
            prompt_ids=list(prompt_ids), max_tokens=len(ours), forced_ids=ours[: place + 1]
        )


class ComputedPrompts:
    """All sequences computed so far: the hits of a store of endless size."""

    def __init__(self) -> None:
        """Starts without sequences."""
        self._computed: list[list[int]] = []
        self._ends: set[tuple[int, ...]] = set()

    def add(self, computed: Sequence[int], *ends: int) -> None:
        """Adds ids whose keys and values were computed and published.

        ``ends`` are numbers of tokens after which the next token is known too.
        """
        self._computed.append(list(computed))
        self._ends.update(tuple(computed[:end]) for end in ends)

    def shared(self, prompt_ids: Sequence[int]) -> int:
        """Returns how many tokens of a greedy prompt need not run, regardless of pages.

        Returns all of them if the next token is known, else at most all but one, whose logits are
        wanted.
        """
        if tuple(prompt_ids) in self._ends:
            return len(prompt_ids)
        longest = max((_common(prompt_ids, each) for each in self._computed), default=0)
        return min(longest, len(prompt_ids) - 1)

    def reused(self, prompt_ids: Sequence[int]) -> int:
        """Returns how many tokens an engine reuses: a few tokens are not worth a copy."""
        shared = self.shared(prompt_ids)
        return shared if shared >= LEAST_COPIED or shared == len(prompt_ids) else 0


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Counts the leading ids that two sequences share."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
