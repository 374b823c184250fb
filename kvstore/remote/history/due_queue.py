"""Work by keys for a few threads, repeated later if it fails."""

from threading import Condition
from typing import Final

from kvstore.service.clock import Clock

FIRST_RETRY: Final = 0.2
MOST_RETRY: Final = 5.0


class DueQueue:
    """Keys that are due, each worked on by one thread at a time. Thread-safe.

    A key that is added while a thread works on it is due again afterwards.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = Condition()
        self._due: dict[bytes, float] = {}
        self._retries: dict[bytes, float] = {}
        self._busy: set[bytes] = set()
        self._is_closed = False

    def add(self, key: bytes) -> None:
        """Makes a key due now."""
        with self._changed:
            self._due[key] = self._clock()
            self._changed.notify_all()

    def wake(self) -> None:
        """Makes all keys due now that wait for a retry."""
        with self._changed:
            self._retries.clear()
            self._due = dict.fromkeys(self._due, self._clock())
            self._changed.notify_all()

    def take(self) -> bytes | None:
        """Waits for a due key, and returns it. Returns None once the queue is closed."""
        with self._changed:
            while not self._is_closed:
                free = [each for each in self._due if each not in self._busy]
                first = min(free, key=self._due.__getitem__, default=None)
                wait = None if first is None else self._due[first] - self._clock()
                if first is not None and wait is not None and wait <= 0:
                    del self._due[first]
                    self._busy.add(first)
                    return first
                self._changed.wait(wait)
            return None

    def finish(self, key: bytes, *, succeeded: bool) -> None:
        """Ends the work on a key. It is due again later unless it succeeded."""
        with self._changed:
            self._busy.discard(key)
            if succeeded:
                self._retries.pop(key, None)
            else:
                pause = self._retries.get(key, FIRST_RETRY)
                self._retries[key] = min(2 * pause, MOST_RETRY)
                self._due.setdefault(key, self._clock() + pause)
            self._changed.notify_all()

    def close(self) -> None:
        """Ends all waits."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
