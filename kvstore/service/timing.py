"""How long calls took, by method and outcome, without a wait on their way."""

# How long something took, again and again: counts by buckets, as a histogram has them. A bucket's
# bound is twice that of the one before, so that the number of a duration's bucket is that of the
# bits of its microseconds: to look for it in a list of bounds takes, in a call that has used up
# the processor's caches, two microseconds more.

from itertools import accumulate
from threading import Lock, local
from typing import Final, NamedTuple, TypeAlias

MICROSECONDS: Final = 1_000_000
# Of the bits of a bucket's microseconds: up to 32 us are in the first, from 8 s on in the last.
FEWEST_BITS, MOST_BITS = 5, 23
# Seconds: below which durations of each bucket are. What is longer has no bound.
BOUNDS: Final = tuple((1 << bits) / MICROSECONDS for bits in range(FEWEST_BITS, MOST_BITS + 1))


def bucket_of(seconds: float) -> int:
    """Returns the number of a duration's bucket."""
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
        """Returns how many were shorter than each bound, and all of them at the end."""
        return list(accumulate(self.counts))

    def plus(self, other: "DurationCounts") -> "DurationCounts":
        """Returns the counts of both."""
        both = zip(self.counts, other.counts, strict=True)
        return DurationCounts(tuple(a + b for a, b in both), self.seconds + other.seconds)


class Durations:
    """Counts durations of one thread. Others may read; they see the last one whole, or not."""

    __slots__ = ("_counts", "_seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    def note(self, seconds: float) -> None:
        """Counts one."""
        self._counts[bucket_of(seconds)] += 1
        self._seconds += seconds

    def read(self) -> DurationCounts:
        """Returns the counts of now."""
        return DurationCounts(tuple(self._counts), self._seconds)


# By method and outcome: the counts of each bucket, and the seconds in all.
_Book: TypeAlias = dict[tuple[str, str], list[float]]


class CallTimes:
    """Counts calls of one lane. Thread-safe.

    Each thread writes into a book of its own, which only :meth:`read` adds up: what a call
    pays is a look into a dict. A book stays when its thread ends; those who call are
    threads of pools.
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
        """Returns the counts of now, by method and outcome."""
        found: dict[tuple[str, str], DurationCounts] = {}
        with self._mutex:
            books = list(self._books)
        for book in books:
            # A copy is one step, during which no other thread adds to it.
            for key, line in book.copy().items():
                *counts, seconds = line.copy()
                more = DurationCounts(tuple(map(int, counts)), seconds)
                found[key] = found.get(key, DurationCounts()).plus(more)
        return found

    def _begin(self, method: str, outcome: str) -> list[float]:
        """Returns a fresh line of this thread's book."""
        book: _Book | None = getattr(self._own, "book", None)
        if book is None:
            book = self._own.book = {}
            with self._mutex:
                self._books.append(book)
        line = book[method, outcome] = [0] * (len(BOUNDS) + 1) + [0.0]
        return line
