"""Durations of calls, by method and outcome, recorded without a wait.

A histogram counts durations by buckets. Each bucket's bound is twice the one before, so a bucket's
number is the bit length of the duration in microseconds. A search in a list of bounds takes two
microseconds more once a call has used up the processor's caches. ``prometheus_client.Histogram``
would take 9.8 us and 10 Python functions for a call, and this takes 2.0 us and 3.
"""

from itertools import accumulate
from threading import Lock, local
from typing import Final, NamedTuple, TypeAlias

from kvstore import background

MICROSECONDS: Final = 1_000_000
# Bit lengths of the first and the last bucket: up to 32 us, and from 8 s on.
FEWEST_BITS, MOST_BITS = 5, 23
# The upper bound of each bucket, in seconds. The last bucket has none.
BOUNDS: Final = tuple((1 << bits) / MICROSECONDS for bits in range(FEWEST_BITS, MOST_BITS + 1))


def bucket_of(seconds: float) -> int:
    """Returns the number of a duration's bucket."""
    bits = int(seconds * MICROSECONDS).bit_length()
    if bits <= FEWEST_BITS:
        return 0
    return bits - FEWEST_BITS if bits <= MOST_BITS else MOST_BITS + 1 - FEWEST_BITS


class DurationCounts(NamedTuple):
    """Counts at one moment: of each bucket alone, and the total seconds."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """The number of durations."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Returns how many were below each bound, and the total at the end."""
        return list(accumulate(self.counts))

    def plus(self, other: "DurationCounts") -> "DurationCounts":
        """Returns the sum of both counts."""
        both = zip(self.counts, other.counts, strict=True)
        return DurationCounts(tuple(a + b for a, b in both), self.seconds + other.seconds)


class Durations:
    """Durations recorded by one thread. Other threads may read; the last one may be missing."""

    __slots__ = ("_counts", "_seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    def note(self, seconds: float) -> None:
        """Counts one duration."""
        self._counts[bucket_of(seconds)] += 1
        self._seconds += seconds

    def read(self) -> DurationCounts:
        """Returns the current counts."""
        return DurationCounts(tuple(self._counts), self._seconds)


# By method and outcome: the counts of each bucket, and the total seconds.
_Book: TypeAlias = dict[tuple[str, str], list[float]]


class CallTimes:
    """Durations of the calls of one transport. Thread-safe.

    Each thread writes into its own table, which only :meth:`read` adds up, so a call pays one dict
    lookup. A table stays when its thread ends; the callers are threads of pools.
    """

    def __init__(self) -> None:
        self._own = local()
        self._mutex = Lock()
        self._books: list[_Book] = []

    def note(self, method: str, outcome: str, seconds: float) -> None:
        """Counts a call that ended; ``outcome`` is OK or its error's reason."""
        try:
            line: list[float] = self._own.book[method, outcome]
        except (AttributeError, KeyError):
            line = self._begin(method, outcome)
        line[bucket_of(seconds)] += 1
        line[-1] += seconds

    def read(self) -> dict[tuple[str, str], DurationCounts]:
        """Returns the current counts, by method and outcome. Gives way to calls."""
        found: dict[tuple[str, str], DurationCounts] = {}
        with self._mutex:
            books = list(self._books)
        for book in background.gently(books, 1):
            # Copying is one step, during which no other thread adds an entry.
            for key, line in book.copy().items():
                *counts, seconds = line.copy()
                more = DurationCounts(tuple(map(int, counts)), seconds)
                found[key] = found.get(key, DurationCounts()).plus(more)
        return found

    def _begin(self, method: str, outcome: str) -> list[float]:
        """Adds an empty entry to this thread's table and returns it."""
        book: _Book | None = getattr(self._own, "book", None)
        if book is None:
            book = self._own.book = {}
            with self._mutex:
                self._books.append(book)
        line = book[method, outcome] = [0] * (len(BOUNDS) + 1) + [0.0]
        return line
