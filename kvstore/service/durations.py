"""How long something took, again and again: counts by buckets, as a histogram has them.

A bucket's bound is twice that of the one before, so that the number of a duration's bucket is
that of the bits of its microseconds: to look for it in a list of bounds takes, in a call that has
used up the processor's caches, two microseconds more.
"""

from itertools import accumulate
from typing import Final, NamedTuple

MICROSECONDS: Final = 1_000_000
# Of the bits of a bucket's microseconds: up to 32 us are in the first, from 8 s on in the last.
FEWEST_BITS, MOST_BITS = 5, 23
# Seconds: below which durations of each bucket are. What is longer has no bound.
BOUNDS: Final = tuple((1 << bits) / MICROSECONDS for bits in range(FEWEST_BITS, MOST_BITS + 1))


def bucket_of(seconds: float) -> int:
    """Return the number of a duration's bucket."""
    bits = int(seconds * MICROSECONDS).bit_length()
    if bits <= FEWEST_BITS:
        return 0
    return bits - FEWEST_BITS if bits <= MOST_BITS else MOST_BITS + 1 - FEWEST_BITS


class DurationCounts(NamedTuple):
    """Counts at one moment: of each bucket alone, and the seconds in all."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Return how many were shorter than each bound, and all of them at the end."""
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
        self._counts[bucket_of(seconds)] += 1
        self._seconds += seconds

    def read(self) -> DurationCounts:
        """Return the counts of now."""
        return DurationCounts(tuple(self._counts), self._seconds)
