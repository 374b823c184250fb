"""How long to wait after a failed attempt."""

from random import Random
from secrets import SystemRandom


class Backoff:
    """Waits that double from ``first`` to ``longest`` seconds, each shortened by chance.

    The jitter keeps the workers of a host from coming back in step. Not
    thread-safe: one loop uses it.
    """

    def __init__(self, first: float, longest: float, random: Random | None = None) -> None:
        self._first = first
        self._longest = longest
        self._random = random or SystemRandom()
        self._next = first

    def reset(self) -> None:
        """Begin again after a success."""
        self._next = self._first

    def delay(self) -> float:
        """Return the next wait, between half of it and all of it."""
        whole = self._next
        self._next = min(self._longest, whole * 2)
        return self._random.uniform(whole / 2, whole)
