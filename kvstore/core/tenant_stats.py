"""What a tenant has at one moment."""

from dataclasses import dataclass

from kvstore.core.holdings import Holdings
from kvstore.core.values.limits import Quotas


@dataclass(frozen=True)
class TenantStats:
    """One tenant: what it may have, and what it has."""

    tenant: str
    quotas: Quotas
    tier1_bytes: int
    lease_count: int
    pin_count: int
    named_pin_count: int


def tenant_stats(holdings: Holdings) -> TenantStats:
    """Return what a tenant has; the cost is that of its arenas."""
    return TenantStats(
        tenant=holdings.tenant,
        quotas=holdings.quotas,
        tier1_bytes=holdings.tier1_bytes,
        lease_count=len(holdings.leases),
        pin_count=holdings.hold_count,
        named_pin_count=holdings.named_pin_count,
    )
