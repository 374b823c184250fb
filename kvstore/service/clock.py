"""Time, from the one place that reads it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds from an arbitrary beginning; never goes back. Any thread may call it."""

    def __call__(self) -> float:
        """Returns the time now, in seconds."""
        ...


# CLOCK_MONOTONIC, by which clients count their leases too. No function of Python's around it: a
# hit asks for the time eight times.
MONOTONIC: Clock = time.monotonic
