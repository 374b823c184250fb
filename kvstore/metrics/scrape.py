"""The values of one scrape by their labels, from which each metric takes its own."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from kvstore.core.stats import LeaseStats
from kvstore.core.values.counters import Counters
from kvstore.core.values.event_log import Cause
from kvstore.metrics.view import View
from kvstore.remote.remote_use import RemoteUse
from kvstore.service.call_durations import DurationCounts
from kvstore.service.page_io.slow_tier import TierState

T = TypeVar("T")
Labels: TypeAlias = tuple[str, ...]
Value: TypeAlias = float | DurationCounts
# Reasons for removal. Other events of pages have counters of their own.
CAUSES: Final = (Cause.REMOVED, Cause.CORRUPT, Cause.RETIRED, Cause.NAMESPACE_DELETED)


class Scrape(NamedTuple):
    """A view, and its names as label values. Several rows may have the same labels."""

    view: View
    # Counters by tenant and namespace, of deleted namespaces too.
    counters: Iterable[tuple[Labels, Counters]]
    # Pages by tenant and namespace.
    cached_pages: Iterable[tuple[Labels, int]]
    # By tenant and owner.
    leases: Iterable[tuple[Labels, LeaseStats]]
    # The label value of each tenant.
    tenants: Mapping[str, str]


class Series(NamedTuple):
    """The labels of a metric, and its rows in a scrape. The values of equal labels are summed."""

    labels: Labels
    rows: Callable[[Scrape], Iterable[tuple[Labels, Value]]]


class Rows(Generic[T]):
    """Rows of a scrape with some labels, which are separated by spaces."""

    def __init__(self, labels: str, rows: Callable[[Scrape], Iterable[tuple[Labels, T]]]) -> None:
        self._labels = tuple(labels.split())
        self._rows = rows

    def each(self, value: Callable[[T], Value]) -> Series:
        """Returns a value of each row."""
        return Series(
            self._labels,
            lambda scrape: ((labels, value(row)) for labels, row in self._rows(scrape)),
        )

    def split(self, label: str, **values: Callable[[T], Value]) -> Series:
        """Returns several values of each row, by one more label."""
        return Series(
            (*self._labels, label),
            lambda scrape: (
                ((*labels, name), value(row))
                for labels, row in self._rows(scrape)
                for name, value in values.items()
            ),
        )


def _remote(view: View) -> list[tuple[Labels, RemoteUse]]:
    """Returns the one row of the remote tier, or none without one."""
    use = None if view.tier3.remote is None else view.tier3.remote.tier.remote
    return [] if use is None else [((), use)]


STORE: Final = Rows("", lambda scrape: [((), scrape.view)])
NAMESPACES: Final = Rows("tenant namespace", lambda scrape: scrape.counters)
CACHED_PAGES: Final = Rows("tenant namespace", lambda scrape: scrape.cached_pages)
LEASES: Final = Rows("tenant owner", lambda scrape: scrape.leases)
TENANTS: Final = Rows(
    "tenant",
    lambda scrape: (((scrape.tenants[row.tenant],), row) for row in scrape.view.stats.tenants),
)
REQUESTS: Final = Rows(
    "tenant",
    lambda scrape: (((scrape.tenants[name],), row) for name, row in scrape.view.requests.items()),
)
TIERS: Final = Rows(
    "tier", lambda scrape: (((str(tier),), size) for tier, size in scrape.view.tier_bytes.items())
)
ARENAS: Final = Rows(
    "tier tenant",
    lambda scrape: (
        ((str(row.tier), scrape.tenants[row.tenant]), row) for row in scrape.view.stats.arenas
    ),
)
# The number of slots in a state, and the bytes of each.
SLOTS: Final = Rows(
    "tier tenant state",
    lambda scrape: (
        ((str(row.tier), scrape.tenants[row.tenant], state.name.lower()), (count, row.slot_bytes))
        for row in scrape.view.stats.arenas
        for state, count in row.slots.items()
    ),
)
REMOVALS: Final = Rows(
    "cause",
    lambda scrape: (
        ((cause.name.lower(),), scrape.view.stats.removed_pages.get(cause, 0)) for cause in CAUSES
    ),
)
CALLS: Final = Rows(
    "lane method outcome",
    lambda scrape: (
        ((lane, path.rpartition("/")[2], outcome), counts)
        for (lane, path, outcome), counts in scrape.view.calls.items()
    ),
)
MOVES: Final = Rows(
    "source target",
    lambda scrape: (
        ((str(source), str(target)), counts)
        for (source, target), counts in scrape.view.moves.items()
    ),
)
# No rows without a disk.
DISK: Final = Rows(
    "",
    lambda scrape: (
        [((), scrape.view.tier3)] if scrape.view.tier3.disk.state is not TierState.ABSENT else []
    ),
)
# No rows without a remote tier.
REMOTE: Final = Rows("", lambda scrape: _remote(scrape.view))
REMOTE_LOOKS: Final = Rows(
    "answer",
    lambda scrape: (
        ((str(answer),), count)
        for _, use in _remote(scrape.view)
        for answer, count in use.looks.items()
    ),
)
REMOTE_REFUSALS: Final = Rows(
    "why",
    lambda scrape: (
        ((str(why),), count)
        for _, use in _remote(scrape.view)
        for why, count in use.refused_writes.items()
    ),
)
REMOTE_REJECTIONS: Final = Rows(
    "why",
    lambda scrape: (
        ((str(why),), count)
        for _, use in _remote(scrape.view)
        for why, count in use.rejected_pages.items()
    ),
)
# With its state, which says also if a removal is not confirmed, and its loads.
REMOTE_STORE: Final = Rows(
    "",
    lambda scrape: [] if scrape.view.tier3.remote is None else [((), scrape.view.tier3.remote)],
)
# No rows without a holder.
SUCCESSION: Final = Rows(
    "",
    lambda scrape: [] if scrape.view.succession is None else [((), scrape.view.succession)],
)
# No rows without KV events. Their counts are those of all tenants.
KV_EVENTS: Final = Rows(
    "", lambda scrape: [((), scrape.view.kv_events)] if scrape.view.kv_events else []
)
THREADS: Final = Rows(
    "thread", lambda scrape: (((name,), row) for name, row in scrape.view.threads.items())
)
BUILD: Final = Rows(
    "version prefix_cache_backend",
    lambda scrape: [((scrape.view.version, scrape.view.prefix_cache_backend), 1)],
)
