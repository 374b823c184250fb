"""The load of the HTTP server: its running answers and their tokens."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol


class RunningAnswer(Protocol):
    """An answer that is being computed, or that waits for an engine."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of its prompt."""
        ...

    @property
    def completion_tokens(self) -> int:
        """Tokens of the answer so far."""
        ...


class ServerLoad:
    """Counts answers between their request and their end. One event loop uses it."""

    def __init__(self) -> None:
        """Starts without answers."""
        self._running: dict[int, RunningAnswer] = {}

    @contextmanager
    def running(self, answers: Sequence[RunningAnswer]) -> Iterator[None]:
        """Counts answers while they run."""
        found = {id(each): each for each in answers}
        self._running |= found
        try:
            yield
        finally:
            for each in found:
                del self._running[each]

    @property
    def answers(self) -> int:
        """Answers that run or wait."""
        return len(self._running)

    @property
    def tokens(self) -> int:
        """Tokens of their prompts, and of the answers so far."""
        return sum(each.prompt_tokens + each.completion_tokens for each in self._running.values())
