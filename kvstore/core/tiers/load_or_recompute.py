"""Load or recompute: the choice between reading pages from a slow tier and computing them.

A page that takes longer to read than to compute is a miss. The speed of a tier is measured;
the speed of an engine is what it states.
"""

from math import exp
from typing import NamedTuple

# After this many seconds a measurement counts e times less than a new one.
MEMORY_SECONDS = 30.0
# After this many seconds without a measurement the tier is tried again.
PROBE_SECONDS = 10.0


class Wanted(NamedTuple):
    """A possible load: ``byte_count`` bytes for ``token_count`` tokens."""

    byte_count: int
    token_count: int


class LoadDecision:
    """A decision by the bandwidth of one tier, in bytes a second. Not thread-safe.

    The bandwidth is a mean weighted by bytes and by age (exponential, over ``memory_seconds``),
    so one small read counts little, and so does a read of an hour ago. Times are arguments, in
    seconds of one monotonic clock.
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
        """The measured bandwidth in bytes a second, or None before the first measurement."""
        return self._bytes / self._seconds if self._seconds > 0 else None

    def observe(self, byte_count: int, seconds: float, now: float) -> None:
        """Records a load of so many bytes that took so long, with its time in the queue.

        Ignores a load that took no time.
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
        """Returns the time of a load of so many bytes, or 0 before the first measurement."""
        bandwidth = self.bandwidth
        return 0.0 if bandwidth is None else byte_count / bandwidth

    def worth_loading(
        self, wanted: Wanted, *, prefill_tokens_per_second: float, queued_bytes: int, now: float
    ) -> bool:
        """Returns True if loading is done sooner than computing.

        ``queued_bytes`` are loaded before. True for an engine that states no speed (0). A tier
        that was found too slow is tried again after ``probe_seconds``, once, since otherwise
        nobody would notice that it recovered.
        """
        if prefill_tokens_per_second <= 0:
            return True
        computing = wanted.token_count / prefill_tokens_per_second
        if self.load_seconds(queued_bytes + wanted.byte_count) < computing:
            return True
        assert self._tried_at is not None  # an unmeasured tier takes no time
        if now - self._tried_at < self._probe_seconds:
            return False
        self._tried_at = now
        return True
