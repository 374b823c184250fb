"""How long calls took, by method and outcome, without a wait on their way."""

from threading import Lock, local
from typing import TypeAlias

from kvstore.service.durations import DurationCounts, Durations

_Book: TypeAlias = dict[tuple[str, str], Durations]


class CallTimes:
    """Counts calls of one lane. Thread-safe.

    Each thread writes into a book of its own, which only :meth:`read` adds up: what a call
    pays is a look into two dicts. A book stays when its thread ends; those who call are
    threads of pools.
    """

    def __init__(self) -> None:
        self._own = local()
        self._mutex = Lock()
        self._books: list[_Book] = []

    def note(self, method: str, outcome: str, seconds: float) -> None:
        """Count a call that ended; ``outcome`` is OK or its error's reason."""
        try:
            book: _Book = self._own.book
        except AttributeError:
            book = self._begin()
        try:
            durations = book[method, outcome]
        except KeyError:
            durations = book[method, outcome] = Durations()
        durations.note(seconds)

    def read(self) -> dict[tuple[str, str], DurationCounts]:
        """Return the counts of now, by method and outcome."""
        found: dict[tuple[str, str], DurationCounts] = {}
        with self._mutex:
            books = list(self._books)
        for book in books:
            # A copy is one step, during which no other thread adds to it.
            for key, durations in book.copy().items():
                found[key] = found.get(key, DurationCounts()).plus(durations.read())
        return found

    def _begin(self) -> _Book:
        book: _Book = {}
        with self._mutex:
            self._books.append(book)
        self._own.book = book
        return book
