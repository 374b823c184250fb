"""Differences of logits by batch, by cut and by hit, over some hundred positions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from support.determinism.rig import STEP_TOKENS, DeterminismRig

BATCHES: Final = (2, 8, 32)


@dataclass
class Differences:
    """The differences between two ways to compute the same positions."""

    positions: int = 0
    different: int = 0
    largest: float = 0.0
    # The gaps between the best two logits, at positions whose best token changed.
    changed_gaps: list[float] = field(default_factory=list)

    def add(self, one: torch.Tensor, other: torch.Tensor) -> None:
        """Compares rows ``[positions, vocabulary]``."""
        best = one.topk(2, dim=-1)
        changed = best.indices[:, 0] != other.argmax(-1)
        self.positions += one.shape[0]
        self.different += int((one != other).any(dim=-1).sum())
        self.largest = max(self.largest, float((one - other).abs().max()))
        self.changed_gaps += (best.values[changed, 0] - best.values[changed, 1]).tolist()

    def plain(self) -> dict[str, Any]:
        """Returns the figures as JSON values."""
        return {
            "positions": self.positions,
            "positions_with_other_bits": self.different,
            "largest_difference": self.largest,
            "changed_tokens": len(self.changed_gaps),
            "changed_gaps": self.changed_gaps,
        }


def compare_ways(
    rig: DeterminismRig, texts: int, context: int, positions: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Compares each way with a context that is computed whole and continued alone.

    The prompt is ``[0, context)`` of each text. The next ``positions`` are decoded, forced.
    """
    whole = range(STEP_TOKENS, context, STEP_TOKENS)
    # A few texts are enough for cuts and hits. Decodes in a batch use all.
    few = range(min(4, texts))
    alone = {text: _continue(rig, [text], context, positions, whole) for text in range(texts)}
    cuts = {
        "in chunks of 128": range(128, context, 128),
        "in chunks of 500": range(500, context, 500),
        "behind a hit of a third": [context // 3],
        "behind a hit of all but 30 tokens": [context - 30],
    }
    for name, each in ((name, each) for name, each in cuts.items() if len(each)):
        found = Differences()
        for text in few:
            rows = _continue(rig, [text], context, positions, each)
            found.add(alone[text].flatten(0, 1), rows.flatten(0, 1))
        yield name, found.plain()
    for count in (count for count in BATCHES if count <= texts):
        found = Differences()
        rows = _continue(rig, range(count), context, positions, whole)
        for text in range(count):
            found.add(alone[text][:, 0], rows[:, text])
        yield f"decoded with {count - 1} others", found.plain()


def _continue(
    rig: DeterminismRig, texts: Sequence[int], context: int, positions: int, cuts: Sequence[int]
) -> torch.Tensor:
    """Returns the logits from the context's last position on: ``[positions, texts, words]``."""
    first = [rig.prefill(text, context, cuts) for text in texts]
    rows = [torch.cat(first)]
    rows += [
        rig.compute([(text, at, at + 1) for text in texts])
        for at in range(context, context + positions - 1)
    ]
    return torch.stack(rows)
