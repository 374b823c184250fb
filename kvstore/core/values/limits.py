"""Limits of everything that a client names, and quotas of tenants, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Quotas:
    """The bounds of one tenant. None means that the tenant has no bound of its own.

    ``tier1_bytes`` bounds the memory of all its arenas in tier 1 together. ``share_bytes`` is
    what it keeps of that when other tenants want memory; None means the same as every other
    tenant. ``leases`` bounds the leases that have not ended. ``pins`` bounds the pins, source
    pins and reservations of all its leases together, and ``named_pins`` the named pins of all
    its namespaces. ``requests_per_second`` bounds its rate of requests in the long run; at
    once it may send as many as one second allows.
    """

    tier1_bytes: int | None = None
    share_bytes: int | None = None
    leases: int = 256
    # About 400 bytes each: 80 MB for a tenant that takes all of them.
    pins: int = 200_000
    named_pins: int = 1000
    requests_per_second: float | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a bound that is out of range."""
        for name in ("tier1_bytes", "share_bytes", "leases", "pins", "named_pins"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} has to be zero or more, and is {value}")
        rate = self.requests_per_second
        # This form refuses NaN as well.
        if rate is not None and not rate > 0:
            raise ValueError(f"requests_per_second has to be more than zero, and is {rate}")


@dataclass(frozen=True)
class QuotaTable:
    """The quotas of every tenant: its own if it is named, and ``default`` otherwise."""

    default: Quotas = Quotas()
    by_tenant: Mapping[str, Quotas] = field(default_factory=dict)

    def of(self, tenant: str) -> Quotas:
        """Returns a tenant's quotas."""
        return self.by_tenant.get(tenant, self.default)

    def with_rates_of(self, other: "QuotaTable") -> "QuotaTable":
        """Returns the same quotas with the request rates of another table."""
        names = sorted({*self.by_tenant, *other.by_tenant})
        by_tenant = {name: _with_rate(self.of(name), other.of(name)) for name in names}
        return QuotaTable(_with_rate(self.default, other.default), by_tenant)

    def differs_beyond_rates(self, other: "QuotaTable") -> bool:
        """Returns True if some tenant has another quota there, apart from its request rate."""
        ours, theirs = self.with_rates_of(other), other
        names = ours.by_tenant.keys()
        return ours.default != theirs.default or any(
            ours.of(name) != theirs.of(name) for name in names
        )


def _with_rate(quotas: Quotas, other: Quotas) -> Quotas:
    return replace(quotas, requests_per_second=other.requests_per_second)


@dataclass(frozen=True)
class Limits:
    """The bounds of everything that a client names. Times are in seconds."""

    # 2**20 tokens are 4 MiB on the wire. That covers the longest contexts in use, and is a
    # quarter of the message limit.
    max_tokens: int = 1 << 20
    max_batch_size: int = 1024
    max_message_bytes: int = 16 << 20
    # For a request without token ids, and for a frame from a client. Sixteen megabytes of
    # empty entries would take a hundred times as much memory once parsed.
    max_short_message_bytes: int = 64 << 10
    max_page_bytes: int = 1 << 30
    max_page_tokens: int = 1 << 16
    max_name_bytes: int = 256
    max_digest_bytes: int = 64
    max_salt_bytes: int = 256
    max_features: int = 64
    max_namespaces: int = 10_000
    max_holds_per_lease: int = 100_000
    # Pages of KV cache groups that one tenant's pins hold and its reservations have inserted, at
    # about 133 bytes each. A pin of 100,000 tokens has 6,250 of a group of which it needs all
    # pages, with 16 tokens a page.
    max_held_group_pages: int = 1_000_000
    # Tokens of one tenant's prefills in flight: 160 of 100,000 tokens, or 8,000 of 2,000.
    # Prefills beyond that still run, but other callers do not learn of them.
    max_announced_bytes: int = 64 << 20
    # Bytes of the pages that a lease's prefetches load at a time: at 2 GB/s of a fast disk an
    # eighth of a second, so that a match seldom waits behind them for long. Pages above that are
    # left to the match itself.
    max_prefetch_bytes: int = 256 << 20
    max_processes_per_lease: int = 64
    min_ttl: float = 0.2
    default_ttl: float = 10.0
    max_ttl: float = 300.0
    max_deadline: float = 60.0
    # For a call that watches events, which changes nothing and so may be late. A client that
    # hangs, or whose host is lost, occupies a place for no longer than this.
    max_watch: float = 3600.0
    # For one tenant, and for all of them. Each watcher has a thread that waits.
    max_watchers: int = 8
    max_watchers_in_all: int = 64
    # Events that wait for one watcher, at about 200 bytes each; events kept for the next one.
    max_waiting_events: int = 4096
    max_remembered_events: int = 1024
    # Longer than the largest deadline, so that no late call can outlive its tombstone.
    tombstone_ttl: float = 120.0
    # For one tenant; beyond that the oldest are dropped. This is what 2,000 matches a second
    # leave in that time, at about 250 bytes each.
    max_tombstones: int = 250_000
