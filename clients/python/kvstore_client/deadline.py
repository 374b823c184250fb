"""The time that one request may take, over all that it waits for."""

import time

from kvstore_client.errors import StoreTimedOut


class Deadline:
    """``seconds`` from now on, by CLOCK_MONOTONIC. Any thread may use it."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def remaining(self) -> float:
        """Return the seconds left, more than zero; raises :class:`StoreTimedOut` after them."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise StoreTimedOut("the deadline passed before the store was asked")
        return left

    def left(self) -> float:
        """Return the seconds left, or zero after them."""
        return max(0.0, self._end - time.monotonic())
