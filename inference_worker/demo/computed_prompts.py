"""What a store of endless size would know: what each prompt shares with those before it."""

from collections.abc import Sequence

from inference_worker.pages.acquisition import LEAST_COPIED


class ComputedPrompts:
    """The sequences that were computed so far, and how much of a new one they cover."""

    def __init__(self) -> None:
        """Starts with none."""
        self._computed: list[list[int]] = []
        self._ends: set[tuple[int, ...]] = set()

    def add(self, computed: Sequence[int], *ends: int) -> None:
        """Notes the ids whose keys and values were computed and published.

        ``ends`` are the numbers of tokens after which the next one became known too.
        """
        self._computed.append(list(computed))
        self._ends.update(tuple(computed[:end]) for end in ends)

    def shared(self, prompt_ids: Sequence[int]) -> int:
        """Says how many tokens of a greedy prompt need not run, pages or no pages.

        All of them where the next token is known, else all but one at most: that one's logits
        are wanted.
        """
        if tuple(prompt_ids) in self._ends:
            return len(prompt_ids)
        longest = max((_common(prompt_ids, each) for each in self._computed), default=0)
        return min(longest, len(prompt_ids) - 1)

    def reused(self, prompt_ids: Sequence[int]) -> int:
        """Says how many tokens of a greedy prompt an engine does not run: few are not worth it."""
        shared = self.shared(prompt_ids)
        return shared if shared >= LEAST_COPIED or shared == len(prompt_ids) else 0


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Counts the leading ids that two sequences share."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
