"""The differences between two snapshots of a store, and rates by the store's own clock."""

from typing import NamedTuple

from kvstore.v1 import lease_pb2, store_pb2

NANOSECONDS = 1e-9


class Activity(NamedTuple):
    """The activity of a store, a namespace or a lease in ``seconds``.

    Tokens and pages are counts. ``hit_rate`` and ``thrash`` are shares from 0 to 1, or None
    without any tokens or pages.
    """

    seconds: float
    lookups: int
    asked_tokens: int
    saved_tokens: int
    inserted_pages: int
    evicted_pages: int
    returned_pages: int

    @property
    def hit_rate(self) -> float | None:
        """The share of the asked tokens that were not computed again."""
        return self.saved_tokens / self.asked_tokens if self.asked_tokens else None

    @property
    def thrash(self) -> float | None:
        """The share of the inserted pages that had been evicted shortly before."""
        return self.returned_pages / self.inserted_pages if self.inserted_pages else None

    def per_second(self, count: int) -> float:
        """Returns a count as a rate; 0 if no time passed."""
        return count / self.seconds if self.seconds > 0 else 0.0


def counted_here(stats: store_pb2.GetStatsResponse) -> lease_pb2.CacheCounters:
    """Returns the sums over the existing namespaces.

    The store's own counters also include deleted namespaces, such as those of a bench.
    """
    total = lease_pb2.CacheCounters()
    for name in total.DESCRIPTOR.fields_by_name:
        setattr(total, name, sum(getattr(each.counters, name) for each in stats.namespaces))
    return total


def overall(counters: lease_pb2.CacheCounters, seconds: float) -> Activity:
    """Returns the activity of all time, over so many seconds."""
    return Activity(
        seconds,
        counters.lookup_count,
        counters.asked_token_count,
        counters.matched_token_count + counters.copied_token_count,
        counters.inserted_page_count,
        counters.evicted_page_count,
        counters.returned_page_count,
    )


def between(
    before: lease_pb2.CacheCounters | None, after: lease_pb2.CacheCounters, seconds: float
) -> Activity:
    """Returns the activity between two snapshots, ``seconds`` apart; all of it without a first."""
    now = overall(after, seconds)
    if before is None:
        return now
    then = overall(before, seconds)
    counts = (late - early for late, early in zip(now[1:], then[1:], strict=True))
    return Activity(seconds, *(int(each) for each in counts))


def uptime_of(stats: store_pb2.GetStatsResponse) -> float:
    """Returns the seconds since a store's start, by its monotonic clock."""
    return stats.uptime.seconds + stats.uptime.nanos * NANOSECONDS


class Change(NamedTuple):
    """The activity between two snapshots of one store, in total and by row of the later one.

    ``namespaces`` are by id, and ``leases`` by tenant and id. All activity of a new row counts.
    """

    whole: Activity
    namespaces: dict[bytes, Activity]
    leases: dict[tuple[str, bytes], Activity]


def change_between(before: store_pb2.GetStatsResponse, after: store_pb2.GetStatsResponse) -> Change:
    """Returns the activity of a store between two snapshots.

    The time between them is by the store's clock, never this host's. If the store restarted
    meanwhile, it is the activity since its start.
    """
    seconds = uptime_of(after) - uptime_of(before)
    if before.store_epoch != after.store_epoch:
        seconds, before = uptime_of(after), store_pb2.GetStatsResponse()
    spaces = {each.namespace_id: each.counters for each in before.namespaces}
    leases = {(each.tenant, each.lease_id): each.counters for each in before.leases}
    return Change(
        between(before.counters, after.counters, seconds),
        {
            each.namespace_id: between(spaces.get(each.namespace_id), each.counters, seconds)
            for each in after.namespaces
        },
        {
            (each.tenant, each.lease_id): between(
                leases.get((each.tenant, each.lease_id)), each.counters, seconds
            )
            for each in after.leases
        },
    )
