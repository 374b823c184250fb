"""Time, from the one place that reads it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds from an arbitrary beginning; never goes back. Any thread may call it."""

    def __call__(self) -> float:
        """Return the time now, in seconds."""
        ...


class MonotonicClock:
    """CLOCK_MONOTONIC, by which clients count their leases too."""

    def __call__(self) -> float:
        """Return the time now, in seconds."""
        return time.monotonic()
