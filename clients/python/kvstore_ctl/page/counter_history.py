"""A store's counters over time: by the second for minutes, by the minute for a day."""

from collections import deque
from threading import Lock
from typing import Any, NamedTuple

from kvstore.v1 import store_pb2
from kvstore_ctl.top.rates import uptime_of

# Ten minutes, and a day.
FINE_COUNT = 600
COARSE_COUNT, COARSE_SECONDS = 1440, 60.0


class Sample(NamedTuple):
    """Counts since the store's start, at ``time`` seconds after it.

    ``found`` counts the tokens that were matched or copied.
    """

    time: float
    asked: int
    found: int
    lookups: int
    misses: int
    inserted: int
    evicted: int
    returned: int


def sample_of(stats: store_pb2.GetStatsResponse) -> Sample:
    """Returns the sample of a snapshot."""
    counters = stats.counters
    return Sample(
        time=round(uptime_of(stats), 3),
        asked=counters.asked_token_count,
        found=counters.matched_token_count + counters.copied_token_count,
        lookups=counters.lookup_count,
        misses=counters.miss_count,
        inserted=counters.inserted_page_count,
        evicted=counters.evicted_page_count,
        returned=counters.returned_page_count,
    )


class SampleHistory:
    """The latest samples, bounded in number. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._fine: deque[Sample] = deque(maxlen=FINE_COUNT)
        self._coarse: deque[Sample] = deque(maxlen=COARSE_COUNT)

    def add(self, sample: Sample) -> None:
        """Keeps a sample. Its time must be later than that of all before it."""
        with self._mutex:
            self._fine.append(sample)
            if not self._coarse or sample.time - self._coarse[-1].time >= COARSE_SECONDS:
                self._coarse.append(sample)

    def since(self, time: float) -> dict[str, Any]:
        """Returns the samples after ``time`` as JSON: each a list of the ``columns``' values."""
        with self._mutex:
            fine, coarse = list(self._fine), list(self._coarse)
        return {
            "columns": Sample._fields,
            "fine": [each for each in fine if each.time > time],
            "coarse": [each for each in coarse if each.time > time],
        }
