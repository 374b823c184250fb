"""Backoffs, deadlines, and the time budget that all calls of one request share."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from random import Random
from secrets import SystemRandom

from kvstore_client.errors import StoreTimedOut, StoreUnavailable


class Backoff:
    """Waits that double from ``first`` to ``longest`` seconds, each with random jitter.

    The jitter keeps the workers of a host from retrying in step. Not thread-safe: one
    loop uses it.
    """

    def __init__(self, first: float, longest: float, random: Random | None = None) -> None:
        self._first = first
        self._longest = longest
        self._random = random or SystemRandom()
        self._next = first

    def reset(self) -> None:
        """Begins again after a success."""
        self._next = self._first

    def delay(self) -> float:
        """Returns the next wait, between half of it and all of it."""
        whole = self._next
        self._next = min(self._longest, whole * 2)
        return self._random.uniform(whole / 2, whole)


class Deadline:
    """A point ``seconds`` from now, by CLOCK_MONOTONIC. Any thread may use it."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def remaining(self) -> float:
        """Returns the seconds left, more than zero; raises :class:`StoreTimedOut` after them."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise StoreTimedOut("the deadline passed before the store was asked")
        return left

    def left(self) -> float:
        """Returns the seconds left, or zero after them."""
        return max(0.0, self._end - time.monotonic())


class StoreBudget:
    """A request's ``seconds`` of waiting for the store, over all its calls, by CLOCK_MONOTONIC.

    Once they are spent, every further call fails at once and counts as a miss. A request
    waits no longer than this, for any number of calls. One thread at a time uses it.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self.spent_seconds = 0.0
        self._clock = clock

    @property
    def left(self) -> float:
        """Seconds that are not spent; zero or less if none are left."""
        return self.seconds - self.spent_seconds

    @contextmanager
    def spend(self, longest: float) -> Iterator[Deadline]:
        """Charges a call of at most ``longest`` seconds; yields its deadline.

        Raises :class:`StoreUnavailable` if nothing is left.
        """
        left = self.left
        if left <= 0:
            raise StoreUnavailable(
                f"not asked: this request waited {self.spent_seconds:.2g} s for the store already"
            )
        begin = self._clock()
        try:
            yield Deadline(min(longest, left))
        finally:
            self.spent_seconds += self._clock() - begin


@contextmanager
def shared_budget(budgets: Iterable[StoreBudget]) -> Iterator[StoreBudget]:
    """Yields a budget for calls that several requests wait for, as large as the largest left.

    Charges each of ``budgets`` for the time that is spent.
    """
    each = list({id(budget): budget for budget in budgets}.values())
    shared = StoreBudget(max(budget.left for budget in each))
    try:
        yield shared
    finally:
        for budget in each:
            budget.spent_seconds += shared.spent_seconds
