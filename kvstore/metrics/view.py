"""The view behind a scrape: the store at one moment, shared by all scrapes of a second."""

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

# Seconds between two views, however many clients scrape.
LIFETIME = 1.0


class ThreadView(NamedTuple):
    """A watched thread: seconds since its last tick, and the failures that it survived."""

    silence: float
    failure_count: int


class View(NamedTuple):
    """The whole store at one moment, across all tenants."""

    stats: Stats
    # By tenant.
    requests: Mapping[str, Requests]
    # Budget of each memory tier, by its number.
    tier_bytes: Mapping[int, int]
    # By source and target tier.
    moves: Mapping[tuple[int, int], MoveCounts]
    tier3: Tier3Use
    # By path, method and outcome.
    calls: Mapping[tuple[str, str, str], DurationCounts]
    thrash: float
    events: EventUse
    threads: Mapping[str, ThreadView]
    ready: bool
    mutex_waits: DurationCounts
    # Seconds that the store took for the view.
    seconds: float
    version: str
    prefix_cache_backend: str


class Views:
    """Keeps the last view for a second. Thread-safe: one thread makes a view, others wait."""

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
