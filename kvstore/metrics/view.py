"""The view behind a scrape: the store at one moment."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kvstore.core.stats import Stats
from kvstore.service.block_feed import KvEventUse
from kvstore.service.call_durations import DurationCounts
from kvstore.service.event_watches import EventUse
from kvstore.service.page_io.memory_mover import MoveCounts
from kvstore.service.page_io.tier3 import Tier3Use
from kvstore.service.tenancy.rate_limit import Requests
from kvstore.succession.store_succession import SuccessionUse


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
    # None without a holder.
    succession: SuccessionUse | None
    thrash: float
    events: EventUse
    # By tenant; empty if none are published.
    kv_events: Sequence[KvEventUse]
    threads: Mapping[str, ThreadView]
    ready: bool
    mutex_waits: DurationCounts
    # Seconds that the store took for the view.
    seconds: float
    version: str
    prefix_cache_backend: str
