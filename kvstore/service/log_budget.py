"""A limit on log lines that clients can cause at will."""

from collections.abc import Callable

from kvstore.service.clock import Clock
from kvstore.service.tenancy.rate_limit import TokenBucket

# Lines a second on average, and in a burst.
RATE = 10.0


class LogBudget:
    """Writes at most ``rate`` lines a second, and counts the rest. Not thread-safe."""

    def __init__(self, clock: Clock, rate: float = RATE) -> None:
        self._clock = clock
        self._bucket = TokenBucket(rate, clock())
        self._left_out = 0

    def write(self, log: Callable[..., object], event: str, **fields: object) -> None:
        """Writes a line with ``log``; ``left_out`` counts the lines dropped since the last."""
        if self._bucket.wait(self._clock()) > 0:
            self._left_out += 1
            return
        self._bucket.take()
        if self._left_out:
            fields["left_out"] = self._left_out
            self._left_out = 0
        log(event, **fields)
