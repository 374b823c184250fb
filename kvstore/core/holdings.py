"""What one tenant has, counted as it comes and goes, against the tenant's quotas."""

from typing import TYPE_CHECKING

from kvstore.core.tombstones import Tombstones, TombstonesOf
from kvstore.core.values.limits import Limits, Quotas
from kvstore.errors import QuotaExceeded

if TYPE_CHECKING:
    from kvstore.core.arena import Arena
    from kvstore.core.lease import Lease
    from kvstore.core.namespace import Namespace


class Holdings:
    """A tenant's leases, namespaces and arenas. Not thread-safe.

    ``hold_count`` counts pins, source pins and reservations of all its leases, and
    ``named_pin_count`` the named pins of all its namespaces. ``tombstones`` are those
    of all its ids, ``lease_tombstones`` of leases among them. ``announced_bytes`` are the
    tokens of its prefills under way.
    """

    __slots__ = (
        "_limits",
        "announced_bytes",
        "arenas",
        "hold_count",
        "lease_tombstones",
        "leases",
        "named_pin_count",
        "namespaces",
        "quotas",
        "tenant",
        "tombstones",
    )

    def __init__(self, tenant: str, quotas: Quotas, limits: Limits) -> None:
        self.tenant = tenant
        self.quotas = quotas
        self.leases: dict[bytes, Lease] = {}
        self.namespaces: dict[bytes, Namespace] = {}
        self.arenas: dict[int, Arena] = {}
        self.hold_count = 0
        self.named_pin_count = 0
        self.announced_bytes = 0
        self.tombstones = Tombstones(limits.tombstone_ttl, limits.max_tombstones)
        self.lease_tombstones = TombstonesOf(self.tombstones, "lease")
        self._limits = limits

    @property
    def tier1_bytes(self) -> int:
        """Bytes of all slots of its arenas in tier 1."""
        first = (each for each in self.arenas.values() if each.tier == 1)
        return sum(each.slot_count * each.slot_bytes for each in first)

    @property
    def bytes_left(self) -> int | None:
        """Bytes that its arenas may still grow by; None where it has no quota of them."""
        quota = self.quotas.tier1_bytes
        return None if quota is None else max(quota - self.tier1_bytes, 0)

    def is_empty(self) -> bool:
        """Return whether nothing is left of the tenant that anything refers to."""
        return not (self.leases or self.namespaces or self.arenas or self.tombstones)

    def require_lease_room(self) -> None:
        """Raise :class:`QuotaExceeded` if another lease is too many."""
        if len(self.leases) >= self.quotas.leases:
            raise QuotaExceeded(quota="leases", maximum=self.quotas.leases)

    def require_namespace_room(self) -> None:
        """Raise :class:`QuotaExceeded` if another namespace is too many."""
        maximum = self._limits.max_namespaces
        if len(self.namespaces) >= maximum:
            raise QuotaExceeded(quota="namespaces", maximum=maximum)

    def require_arena_room(self, tier_count: int) -> None:
        """Raise :class:`QuotaExceeded` if pages of another size, in so many tiers, are too many.

        An arena stays when its last namespace is deleted, with the memory that it has.
        """
        maximum = self._limits.max_namespaces
        if len(self.arenas) >= maximum * tier_count:
            raise QuotaExceeded(quota="arenas", maximum=maximum)

    def require_page_room(self, page_bytes: int) -> None:
        """Raise :class:`QuotaExceeded` if one page of this size is more than it may have."""
        quota = self.quotas.tier1_bytes
        if quota is not None and page_bytes > quota:
            raise QuotaExceeded(quota="tier1_bytes", maximum=quota, value=page_bytes)

    def require_hold_room(self, count: int) -> None:
        """Raise :class:`QuotaExceeded` if ``count`` more pins and reservations are too many."""
        if self.hold_count + count > self.quotas.pins:
            raise QuotaExceeded(quota="pins", maximum=self.quotas.pins)

    def has_room_to_announce(self, size: int) -> bool:
        """Return whether prefills may keep ``size`` more bytes of tokens."""
        return self.announced_bytes + size <= self._limits.max_announced_bytes

    def require_named_pin_room(self) -> None:
        """Raise :class:`QuotaExceeded` if another named pin is too many."""
        if self.named_pin_count >= self.quotas.named_pins:
            raise QuotaExceeded(quota="named_pins", maximum=self.quotas.named_pins)
