"""Load or recompute: whether pages of a slow tier are worth waiting for.

What is slower to load than to compute is a miss. A tier's speed is what was measured of
it, lately; an engine's is what it says of itself.
"""

from math import exp
from typing import NamedTuple

# Seconds after which a measurement counts e times less than a new one.
MEMORY_SECONDS = 30.0
# After so many seconds without one the tier is tried again, whatever was measured before.
PROBE_SECONDS = 10.0


class Wanted(NamedTuple):
    """What would be loaded: ``byte_count`` bytes that stand for ``token_count`` tokens."""

    byte_count: int
    token_count: int


class LoadDecision:
    """Decides by the bandwidth of one tier, in bytes a second. Not thread-safe.

    The bandwidth is a mean weighted by bytes and by age (exponential, over
    ``memory_seconds``), so that neither one small read nor an hour ago counts much.
    Times are arguments, in seconds of one monotonic clock.
    """

    def __init__(
        self, *, memory_seconds: float = MEMORY_SECONDS, probe_seconds: float = PROBE_SECONDS
    ) -> None:
        self._memory_seconds = memory_seconds
        self._probe_seconds = probe_seconds
        self._bytes = 0.0
        self._seconds = 0.0
        self._measured_at: float | None = None
        self._tried_at: float | None = None

    @property
    def bandwidth(self) -> float | None:
        """Bytes a second, as far as was measured; None before the first measurement."""
        return self._bytes / self._seconds if self._seconds > 0 else None

    def observe(self, byte_count: int, seconds: float, now: float) -> None:
        """Take in a load of so many bytes that took so long, its time in line included.

        What took no time says nothing.
        """
        if byte_count <= 0 or seconds <= 0:
            return
        if self._measured_at is not None:
            faded = exp(-max(now - self._measured_at, 0.0) / self._memory_seconds)
            self._bytes *= faded
            self._seconds *= faded
        self._bytes += byte_count
        self._seconds += seconds
        self._measured_at = self._tried_at = now

    def load_seconds(self, byte_count: int) -> float:
        """Return how long a load of so many bytes takes; 0 before the first measurement."""
        bandwidth = self.bandwidth
        return 0.0 if bandwidth is None else byte_count / bandwidth

    def worth_loading(
        self, wanted: Wanted, *, prefill_tokens_per_second: float, queued_bytes: int, now: float
    ) -> bool:
        """Return whether loading is sooner done than computing.

        ``queued_bytes`` are loaded before. An engine that states no speed (0) always
        loads. A tier found too slow is tried again after ``probe_seconds``, once, for
        otherwise nobody would notice that it recovered.
        """
        if prefill_tokens_per_second <= 0:
            return True
        computing = wanted.token_count / prefill_tokens_per_second
        if self.load_seconds(queued_bytes + wanted.byte_count) < computing:
            return True
        assert self._tried_at is not None  # what was never measured takes no time
        if now - self._tried_at < self._probe_seconds:
            return False
        self._tried_at = now
        return True
