"""Counts over the prompts of a store."""

from dataclasses import dataclass, replace
from threading import Lock


@dataclass(frozen=True)
class PromptCounts:
    """Numbers of the prompts that ended so far, and of their tokens."""

    prompt_count: int = 0
    """Prompts that ended."""
    hit_count: int = 0
    """Prompts with a cached prefix."""
    prompt_token_count: int = 0
    """Tokens of all prompts."""
    cached_token_count: int = 0
    """Tokens of them that were copied from the store."""
    saved_token_count: int = 0
    """Tokens of prompts and outputs that were saved."""


class CountOfPrompts:
    """A running sum over prompts. Any thread may use it."""

    def __init__(self) -> None:
        """Starts at zero."""
        self._mutex = Lock()
        self.counts = PromptCounts()

    def add(self, prompt: int, cached: int, saved: int) -> None:
        """Adds one prompt with its numbers of tokens."""
        with self._mutex:
            so_far = self.counts
            self.counts = replace(
                so_far,
                prompt_count=so_far.prompt_count + 1,
                hit_count=so_far.hit_count + (cached > 0),
                prompt_token_count=so_far.prompt_token_count + prompt,
                cached_token_count=so_far.cached_token_count + cached,
                saved_token_count=so_far.saved_token_count + saved,
            )
