"""The prompts of the engines, as token ids."""

import random
from dataclasses import dataclass, replace

VOCABULARY = 256
ANSWER_TOKENS = 12


@dataclass(frozen=True)
class Prompt:
    """One request. It is aborted after ``abort_after`` tokens of its answer, if that is given.

    ``hint`` is its hint in JSON, well formed or not.
    """

    tokens: tuple[int, ...]
    salt: str | None = None
    adapter: str | None = None
    answer_tokens: int = ANSWER_TOKENS
    abort_after: int | None = None
    hint: str | None = None

    def then(self, more: "Prompt") -> "Prompt":
        """Returns a prompt that goes on with another's tokens."""
        return replace(self, tokens=self.tokens + more.tokens)

    def aborted(self, after: int | None) -> "Prompt":
        """Returns the request that is aborted after so many tokens of its answer."""
        return replace(self, abort_after=after)

    def head(self, count: int) -> "Prompt":
        """Returns the prompt of its first tokens."""
        return replace(self, tokens=self.tokens[:count])


def prompt(seed: int, length: int) -> Prompt:
    """Returns a prompt of random tokens; the same for the same seed and length."""
    numbers = random.Random(f"{seed} {length}")
    return Prompt(tuple(numbers.randrange(VOCABULARY) for _ in range(length)))


def prompts(seed: int, *lengths: int) -> list[Prompt]:
    """Returns prompts that share nothing."""
    return [prompt(seed * 1_000 + i, length) for i, length in enumerate(lengths)]
