"""Load or recompute: the choice between reading pages from a slow tier and computing them.

A page that takes longer to read than to compute is a miss. The speed of a tier is measured;
the speed of an engine is what it states. A tier on another machine is first asked which pages it
has, and that question costs time too.
"""

from math import exp
from typing import NamedTuple

# After this many seconds a measurement counts e times less than a new one.
MEMORY_SECONDS = 30.0
# After this many seconds without a measurement the tier is tried again.
PROBE_SECONDS = 10.0
# A tier whose looks are late is first tried again after so many seconds, and then after pauses that
# double up to the one above. Most stalls last a second or two, and each late look costs a call a
# quarter of its time.
FIRST_PROBE_SECONDS = 0.5
# An engine that states no speed waits for a tier that answers as quickly on average. A local Valkey
# answers for 128 pages in 0.05 to 1.3 ms, and S3 in 6 to 50 ms.
MOST_LOOK_SECONDS = 0.005
# The share of the latest look in the mean. A mean of four looks follows a tier that became slow.
LATEST_LOOK = 0.25


class Wanted(NamedTuple):
    """A possible load: ``byte_count`` bytes for ``token_count`` tokens."""

    byte_count: int
    token_count: int


class LoadDecision:
    """A decision by the bandwidth of one tier, in bytes a second. Not thread-safe.

    The bandwidth is a mean weighted by bytes and by age (exponential, over ``memory_seconds``),
    so one small read counts little, and so does a read of an hour ago. Times are arguments, in
    seconds of one monotonic clock.

    A look asks the tier which pages it has. Its latency is a mean of the latest looks, at first
    ``look_seconds``.
    """

    def __init__(
        self,
        *,
        memory_seconds: float = MEMORY_SECONDS,
        probe_seconds: float = PROBE_SECONDS,
        look_seconds: float = 0.0,
    ) -> None:
        self._first_look_seconds = look_seconds
        self._memory_seconds = memory_seconds
        self._probe_seconds = probe_seconds
        self.restart()

    def restart(self) -> None:
        """Forgets all measurements, for a tier that was away and works again."""
        self.look_seconds = self._first_look_seconds
        self._looked_at: float | None = None
        self._look_tried_at: float | None = None
        self._was_late = False
        self._late_pause = FIRST_PROBE_SECONDS
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

    def observe_look(self, seconds: float, now: float, *, is_late: bool = False) -> None:
        """Records a look that took so long, whatever it found.

        A late look, which was given up, counts twice its time, since it might have taken longer.
        After ``probe_seconds`` without a look the earlier ones no longer count, and neither do late
        ones after an answer in time.
        """
        taken = 2 * seconds if is_late else seconds
        is_stale = self._looked_at is None or now - self._looked_at >= self._probe_seconds
        recovers = self._was_late and not is_late
        if recovers:
            # A tier that is late often is not asked as soon as one that was never late before.
            self._late_pause = max(self._late_pause / 2, FIRST_PROBE_SECONDS)
        self._was_late = is_late
        share = 1.0 if is_stale or recovers else LATEST_LOOK
        self.look_seconds += share * (taken - self.look_seconds)
        self._looked_at = self._look_tried_at = now

    def worth_looking(
        self,
        wanted: Wanted,
        *,
        prefill_tokens_per_second: float,
        queued_bytes: int,
        patience: float,
        now: float,
    ) -> bool:
        """Returns True if a look and a load after it are done sooner than computing.

        ``wanted`` is all that the tier may have. The look has to be answered within ``patience``
        seconds, and in ``MOST_LOOK_SECONDS`` for an engine that states no speed (0). A tier that
        was found too slow is asked again after ``probe_seconds``, once. One that is only too slow
        for the caller's patience is asked after shorter pauses at first.
        """
        most = MOST_LOOK_SECONDS
        if prefill_tokens_per_second > 0:
            computing = wanted.token_count / prefill_tokens_per_second
            most = computing - self.load_seconds(queued_bytes + wanted.byte_count)
        if self.look_seconds < min(most, patience):
            return True
        is_late = self._was_late and self.look_seconds < most
        pause = self._late_pause if is_late else self._probe_seconds
        if self._look_tried_at is not None and now - self._look_tried_at < pause:
            return False
        self._look_tried_at = now
        if is_late:
            self._late_pause = min(2 * pause, self._probe_seconds)
        return True

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
