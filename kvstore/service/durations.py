"""How long something took, again and again: counts by buckets, as a histogram has them."""

from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple

# Seconds: the longest that a bucket counts. What is longer is in the last, which has no bound.
BOUNDS = (
    *(0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)


class DurationCounts(NamedTuple):
    """Counts at one moment: of each bucket alone, and the seconds in all."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Return how many were at most as long as each bound, and all of them at the end."""
        return list(accumulate(self.counts))

    def plus(self, other: "DurationCounts") -> "DurationCounts":
        """Return the counts of both."""
        both = zip(self.counts, other.counts, strict=True)
        return DurationCounts(tuple(a + b for a, b in both), self.seconds + other.seconds)


class Durations:
    """Counts durations of one thread. Others may read; they see the last one whole, or not."""

    __slots__ = ("_counts", "_seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    def note(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._seconds += seconds

    def read(self) -> DurationCounts:
        """Return the counts of now."""
        return DurationCounts(tuple(self._counts), self._seconds)
