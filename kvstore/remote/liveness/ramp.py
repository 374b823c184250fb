"""A number of calls at a time, which grows from one while an engine that was away returns."""

from threading import Condition


class Ramp:
    """At most ``limit`` places, of which ``allowed`` may be taken. Thread-safe.

    After ``restart`` one place is left, and each call that succeeds doubles them.
    """

    def __init__(self, limit: int) -> None:
        self.allowed = limit
        self._limit = limit
        self._used = 0
        self._changed = Condition()

    def take(self) -> bool:
        """Takes a place and returns True if one is free."""
        with self._changed:
            if self._used >= self.allowed:
                return False
            self._used += 1
            return True

    def wait(self, seconds: float) -> bool:
        """Waits so long at most for a place, and takes it."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._used < self.allowed, seconds):
                return False
            self._used += 1
            return True

    def give(self, *, succeeded: bool) -> None:
        """Gives a place back, after a call that succeeded or not."""
        with self._changed:
            self._used -= 1
            if succeeded:
                self.allowed = min(2 * self.allowed, self._limit)
            self._changed.notify_all()

    def restart(self) -> None:
        """Leaves one place."""
        with self._changed:
            self.allowed = 1
