"""A value that is made anew when it is asked for and has become too old."""

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

from kvstore.service.clock import Clock

T = TypeVar("T")


class Recent(Generic[T]):
    """What ``make`` returned ``max_age`` seconds ago at most. Thread-safe.

    However many ask, it is made once in that time, by one of them while the others wait; and
    where making it took long, no oftener than once in ``rest`` times as long.
    """

    def __init__(
        self, make: Callable[[], T], clock: Clock, *, max_age: float, rest: float = 0.0
    ) -> None:
        self._make = make
        self._clock = clock
        self._max_age = max_age
        self._rest = rest
        self._mutex = Lock()
        self._made: T | None = None
        self._due = clock()

    def get(self) -> T:
        """Returns the value; raises what ``make`` raises, and tries again the next time."""
        with self._mutex:
            began = self._clock()
            if self._made is None or began >= self._due:
                self._made = self._make()
                ended = self._clock()
                self._due = max(began + self._max_age, ended + self._rest * (ended - began))
            return self._made
