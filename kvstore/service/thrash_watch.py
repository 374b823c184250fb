"""Detection of thrashing: pages evicted shortly before they would have been used."""

from threading import Lock

import structlog

from kvstore.core import PrefixCache
from kvstore.service.clock import Clock
from kvstore.service.log_budget import LogBudget

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Seconds of one measurement.
INTERVAL = 60.0
# The fraction of inserted pages that were evicted just before, and the least number of such pages,
# for which a line is logged.
SHARE = 0.2
LEAST_PAGES = 64
# Log lines a second: one in ten minutes.
RATE = 1 / 600


class ThrashWatch:
    """Compares inserted pages with those among them that had just been evicted.

    ``ratio`` is the fraction in the last complete minute.
    """

    def __init__(self, cache: PrefixCache, mutex: Lock, clock: Clock) -> None:
        self._counters = cache.counters
        self._mutex = mutex
        self._clock = clock
        self._budget = LogBudget(clock, RATE)
        self._began = clock()
        self._inserted = self._returned = 0
        self.ratio = 0.0

    def look(self) -> None:
        """Logs one line if the last minute exceeded the bound; does nothing before it is over."""
        now = self._clock()
        if now - self._began < INTERVAL:
            return
        self._began = now
        with self._mutex:
            inserted = self._counters.inserted_page_count
            returned = self._counters.returned_page_count
        fresh, back = inserted - self._inserted, returned - self._returned
        self._inserted, self._returned = inserted, returned
        self.ratio = back / fresh if fresh else 0.0
        if back >= LEAST_PAGES and back >= SHARE * fresh:
            self._budget.write(
                log.warning,
                "evicted_too_early",
                inserted_page_count=fresh,
                returned_page_count=back,
                advice="twice the memory would have kept the pages that returned",
            )
