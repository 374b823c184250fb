"""How long calls took, by method and outcome, without a wait on their way."""

from threading import Lock, local
from typing import TypeAlias

from kvstore.service.durations import BOUNDS, DurationCounts, bucket_of

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
        """Count a call that ended; ``outcome`` is OK or its error's reason."""
        try:
            line: list[float] = self._own.book[method, outcome]
        except (AttributeError, KeyError):
            line = self._begin(method, outcome)
        line[bucket_of(seconds)] += 1
        line[-1] += seconds

    def read(self) -> dict[tuple[str, str], DurationCounts]:
        """Return the counts of now, by method and outcome."""
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
        """Return a fresh line of this thread's book."""
        book: _Book | None = getattr(self._own, "book", None)
        if book is None:
            book = self._own.book = {}
            with self._mutex:
                self._books.append(book)
        line = book[method, outcome] = [0] * (len(BOUNDS) + 1) + [0.0]
        return line
