"""Quotas: what a tenant may have and ask for, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Quotas:
    """Bounds of one tenant. None means that the tenant has no bound of its own.

    ``tier1_bytes`` is how much memory all its arenas of the first tier may take
    together. ``share_bytes`` is what it keeps of that when other tenants want
    memory; None: as much as every other tenant. ``leases`` are those that have not
    ended. ``pins`` are pins, source pins and reservations of all its leases
    together. ``named_pins`` are those of all its namespaces.
    ``requests_per_second`` is what it may ask for in the long run; for a moment it
    may ask for as many as a second brings.
    """

    tier1_bytes: int | None = None
    share_bytes: int | None = None
    leases: int = 256
    # Some 400 bytes each: 80 MB for a tenant that takes all of them.
    pins: int = 200_000
    named_pins: int = 1000
    requests_per_second: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a bound that cannot be meant."""
        for name in ("tier1_bytes", "share_bytes", "leases", "pins", "named_pins"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} has to be zero or more, and is {value}")
        rate = self.requests_per_second
        # Written so that NaN is refused too.
        if rate is not None and not rate > 0:
            raise ValueError(f"requests_per_second has to be more than zero, and is {rate}")


@dataclass(frozen=True)
class QuotaTable:
    """The quotas of every tenant: its own where it is named, else ``default``."""

    default: Quotas = Quotas()
    by_tenant: Mapping[str, Quotas] = field(default_factory=dict)

    def of(self, tenant: str) -> Quotas:
        """Return a tenant's quotas."""
        return self.by_tenant.get(tenant, self.default)

    def with_rates_of(self, other: "QuotaTable") -> "QuotaTable":
        """Return the same quotas with the rates of requests of another table."""
        names = sorted({*self.by_tenant, *other.by_tenant})
        by_tenant = {name: _with_rate(self.of(name), other.of(name)) for name in names}
        return QuotaTable(_with_rate(self.default, other.default), by_tenant)

    def differs_beyond_rates(self, other: "QuotaTable") -> bool:
        """Return whether any tenant has another quota there, the rate of its requests aside."""
        ours, theirs = self.with_rates_of(other), other
        names = ours.by_tenant.keys()
        return ours.default != theirs.default or any(
            ours.of(name) != theirs.of(name) for name in names
        )


def _with_rate(quotas: Quotas, other: Quotas) -> Quotas:
    return replace(quotas, requests_per_second=other.requests_per_second)
