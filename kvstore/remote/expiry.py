"""Lives of pages: an engine evicts those that expire first, and a child goes before its parent.

Expiries lie on the ends of buckets by the engine's clock, so all hosts give equal pages equal ones.
A bucket takes ten minutes, or a quarter of the pages' life if that is shorter. A page lives some
milliseconds less for each page before it on its path.
"""

from time import monotonic
from typing import Final

# The longest bucket.
BUCKET_SECONDS: Final = 600.0
# With a short life, a page that is refreshed in every second bucket still does not expire: its
# steps take a half of the life, and the bucket left out takes a quarter.
BUCKETS_IN_A_LIFE: Final = 4
# Less life for each page before one. Two writes take different times to reach the engine.
STEP_MS: Final = 4
# All steps together take no more than a half of ``ttl_seconds``: the deepest pages live as long.
MOST_STEPS_PART: Final = 2
# The depth of a page whose parent is unknown: a path of a million tokens with pages of
# 16 has fewer before it. Twice as many steps are still less than the longest bucket.
UNKNOWN_DEPTH: Final = 1 << 16


class EngineClock:
    """The engine's clock as this host last read it; before that its own. Thread-safe."""

    def __init__(self, wall_seconds: float) -> None:
        self.is_known = False
        """The engine has told its time."""
        self._offset_ms = int(1000 * (wall_seconds - monotonic()))

    def set(self, engine_ms: int) -> None:
        """Takes over the engine's time, in milliseconds since 1970."""
        self._offset_ms = engine_ms - int(1000 * monotonic())
        self.is_known = True

    def now_ms(self) -> int:
        """Returns the engine's time, in milliseconds since 1970."""
        return int(1000 * monotonic()) + self._offset_ms


class Expiry:
    """Relative lives of pages, for ``ttl_seconds`` after the present bucket. Thread-safe."""

    def __init__(self, clock: EngineClock, ttl_seconds: float) -> None:
        self.bucket_seconds = min(BUCKET_SECONDS, ttl_seconds / BUCKETS_IN_A_LIFE)
        """The length of a bucket. A page in use is refreshed once in each."""
        self._clock = clock
        self._ttl_ms = int(1000 * ttl_seconds)
        self._bucket_ms = max(int(1000 * self.bucket_seconds), 1)

    @property
    def bucket(self) -> int:
        """The number of the present bucket."""
        return self._clock.now_ms() // self._bucket_ms

    def life_ms(self, depth: int) -> int:
        """Returns the life of a page with so many pages before it, positive milliseconds."""
        left = self._bucket_ms - self._clock.now_ms() % self._bucket_ms
        steps = min(STEP_MS * depth, self._ttl_ms // MOST_STEPS_PART)
        return max(left + self._ttl_ms - steps, 1)
