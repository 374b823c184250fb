"""The share of its time in which a host writes to an engine that returns or is slow.

All hosts find an engine that returns empty, and each would write everything hot at once. Reads
would wait behind the writes until they are late, and the breaker would open again. So writes begin
with a small share, which doubles each second while looks are quick, and is halved while they are
slow: additive increase would take minutes.
"""

import random
from collections import deque
from statistics import median
from threading import Lock
from typing import Final

from kvstore.service.clock import Clock

LEAST_SHARE: Final = 0.05
STEP_SECONDS: Final = 1.0
# Looks are slow if the median of the latest is so many times the usual one.
SLOW: Final = 3.0
# Faster looks are never slow: a look of 128 pages took 0.65 to 1.3 ms on an idle Valkey.
QUICK_SECONDS: Final = 0.005
USUAL_LOOKS: Final = 256
RECENT_LOOKS: Final = 16
RECENT_SECONDS: Final = 2.0
# The random part of a rest, so that hosts do not write in step.
JITTER: Final = 0.5
# Its own: threads must not draw from the numbers of others.
_RANDOM: Final = random.Random()  # noqa: S311  # no secret


class WritePace:
    """The pace of a host's writers, who rest after each batch. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self.share = 1.0
        self._clock = clock
        self._mutex = Lock()
        self._usual: deque[float] = deque(maxlen=USUAL_LOOKS)
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT_LOOKS)
        self._step_at = clock() + STEP_SECONDS

    def note_look(self, seconds: float) -> None:
        """Notes how long a look took that was answered."""
        with self._mutex:
            self._recent.append((self._clock(), seconds))
            # While the engine is slow, its looks are not usual.
            if self.share >= 1.0:
                self._usual.append(seconds)

    def restart(self) -> None:
        """Begins with the least share."""
        with self._mutex:
            self.share = LEAST_SHARE
            self._recent.clear()
            self._step_at = self._clock() + STEP_SECONDS

    def rest(self, worked: float) -> float:
        """Returns how many seconds to rest after so many seconds of writes."""
        with self._mutex:
            now = self._clock()
            if now >= self._step_at:
                self._step_at = now + STEP_SECONDS
                is_slow = self._is_slow(now)
                self.share = max(self.share / 2, LEAST_SHARE) if is_slow else self._doubled()
            if self.share >= 1.0:
                return 0.0
            seconds = worked * (1 / self.share - 1)
        return seconds * _RANDOM.uniform(1 - JITTER, 1 + JITTER)

    def _doubled(self) -> float:
        return min(2 * self.share, 1.0)

    def _is_slow(self, now: float) -> bool:
        recent = [each for at, each in self._recent if now - at <= RECENT_SECONDS]
        if not recent or not self._usual:
            return False
        return median(recent) > max(SLOW * median(self._usual), QUICK_SECONDS)
