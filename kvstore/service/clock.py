"""The clock: the one module that reads the time."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds from an arbitrary beginning. The clock never goes back. Any thread may call it."""

    def __call__(self) -> float:
        """Returns the time now, in seconds."""
        ...


# CLOCK_MONOTONIC, by which clients count their leases too. No Python function wraps it, because a
# hit reads the time eight times.
MONOTONIC: Clock = time.monotonic
