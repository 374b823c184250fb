"""What was counted, moment by moment: a second apart for minutes, a minute apart for a day."""

from bisect import bisect_left
from collections import deque
from threading import Lock
from typing import Any, NamedTuple

from kvstore.service.admin import Totals

# Ten minutes, and a day.
FINE_COUNT, FINE_SECONDS = 600, 1.0
COARSE_COUNT, COARSE_SECONDS = 1440, 60.0


class Sample(NamedTuple):
    """Counts since the start, at ``time`` seconds after it. Tokens ``found`` were not computed."""

    time: float
    asked: int
    found: int
    lookups: int
    misses: int
    inserted: int
    evicted: int
    returned: int
    uses: int


def sample_of(totals: Totals, time: float) -> Sample:
    """Returns what one moment's totals come to."""
    counters = totals.counters
    return Sample(
        time=round(time, 3),
        asked=counters.asked_token_count,
        found=counters.matched_token_count + counters.copied_token_count,
        lookups=counters.lookup_count,
        misses=counters.miss_count,
        inserted=counters.inserted_page_count,
        evicted=counters.evicted_page_count,
        returned=counters.returned_page_count,
        uses=totals.use_count,
    )


class History:
    """The last samples, bounded in number. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._fine: deque[Sample] = deque(maxlen=FINE_COUNT)
        self._coarse: deque[Sample] = deque(maxlen=COARSE_COUNT)

    def take(self, sample: Sample) -> None:
        """Keeps a sample, which is later than all before it."""
        with self._mutex:
            self._fine.append(sample)
            if not self._coarse or sample.time - self._coarse[-1].time >= COARSE_SECONDS:
                self._coarse.append(sample)

    def since(self, time: float) -> dict[str, Any]:
        """Returns the samples after ``time``, as JSON has them: a list of values each."""
        with self._mutex:
            fine, coarse = list(self._fine), list(self._coarse)
        return {
            "columns": Sample._fields,
            "fine": [each for each in fine if each.time > time],
            "coarse": [each for each in coarse if each.time > time],
        }

    def age(self, use: int, now: float) -> float | None:
        """Returns how many seconds before ``now`` the use of this number was, or None: unknown.

        To the second, or the minute; of what was before all samples, how long it is at least.
        """
        with self._mutex:
            fine, coarse = list(self._fine), list(self._coarse)
        if not fine or use <= 0:
            return None
        samples = fine if use > fine[0].uses else coarse
        place = bisect_left(samples, use, key=lambda each: each.uses)
        return 0.0 if place == len(samples) else max(now - samples[place].time, 0.0)
