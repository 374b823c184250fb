"""What a scrape shows: everything of one moment, made once for all who ask within a second."""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import NamedTuple

from kvstore.core.stats import Stats
from kvstore.service.clock import Clock
from kvstore.service.events import EventUse
from kvstore.service.tenancy.rate_limit import Requests
from kvstore.service.tiers.disk_tier import Tier3Use
from kvstore.service.tiers.mover import MoveCounts
from kvstore.service.timing import DurationCounts

# Seconds: however many scrape, the store is asked no more often.
LIFETIME = 1.0


class ThreadView(NamedTuple):
    """A thread that health watches: seconds since it last got round, failures it outlived."""

    silence: float
    failure_count: int


class View(NamedTuple):
    """A store at one moment, for one who may see all of it."""

    stats: Stats
    # By tenant.
    requests: Mapping[str, Requests]
    # What each memory tier may take, by its number.
    tier_bytes: Mapping[int, int]
    # By the tiers that pages were copied from and to.
    moves: Mapping[tuple[int, int], MoveCounts]
    tier3: Tier3Use
    # By what they came over, method and outcome.
    calls: Mapping[tuple[str, str, str], DurationCounts]
    thrash: float
    events: EventUse
    threads: Mapping[str, ThreadView]
    ready: bool
    mutex_waits: DurationCounts
    # Seconds that it took to ask the store.
    seconds: float
    version: str
    prefix_cache_backend: str


class Views:
    """Keeps the last view for a second. Thread-safe; one at a time is made, and others wait."""

    def __init__(self, make: Callable[[], View], clock: Clock, lifetime: float = LIFETIME) -> None:
        self._make = make
        self._clock = clock
        self._lifetime = lifetime
        self._mutex = Lock()
        self._last: tuple[float, View] | None = None

    def now(self) -> View:
        """Returns a view that is at most a second old."""
        with self._mutex:
            if self._last is None or self._clock() - self._last[0] >= self._lifetime:
                view = self._make()
                self._last = self._clock(), view
            return self._last[1]
