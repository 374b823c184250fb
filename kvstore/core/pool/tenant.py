"""A tenant: what it has, counted against its quotas, and the tombstones of its ids."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, TypeAlias, TypeVar

from kvstore.core.values.limits import Limits, Quotas
from kvstore.errors import QuotaExceeded, Tombstoned

Key = TypeVar("Key")
Value = TypeVar("Value")
# Returns the key of a tenant by its name.
TenantKeys: TypeAlias = Callable[[str], bytes]


def no_key(name: str) -> bytes:
    """Returns the key of tenants without one: all stores may share their pages."""
    del name
    return b""


class Tombstones:
    """Ids that were released, kept for longer than any call can be under way.

    Beyond ``most`` ids the oldest are dropped, so the table is bounded in number too.
    ``lifetime`` is in seconds. ``until`` has, by id, the time at which each is dropped.
    """

    def __init__(self, lifetime: float, most: int) -> None:
        self._lifetime = lifetime
        self._most = most
        self.until: OrderedDict[Hashable, float] = OrderedDict()

    def leave(self, key: Hashable, now: float) -> None:
        """Leaves a tombstone; a newer one replaces an older one."""
        self.until[key] = now + self._lifetime
        self.until.move_to_end(key)
        if len(self.until) > self._most:
            self.until.popitem(last=False)

    def leave_all(self, keys: Iterable[Hashable], now: float) -> None:
        """Leaves many tombstones at once, in a quarter of the time."""
        self.until.update(dict.fromkeys(keys, now + self._lifetime))
        while len(self.until) > self._most:
            self.until.popitem(last=False)

    def require_none(self, key: Hashable, **metadata: object) -> None:
        """Raises :class:`Tombstoned` if the id was released before."""
        if key in self:
            raise Tombstoned(**metadata)

    def expire(self, now: float) -> None:
        """Drops tombstones past their lifetime. Costs only as much as there are of them."""
        old = []
        for key, until in self.until.items():
            if until > now:
                break
            old.append(key)
        for key in old:
            del self.until[key]

    def __contains__(self, key: Hashable) -> bool:
        return key in self.until

    def __len__(self) -> int:
        return len(self.until)


class TombstonesOf:
    """The tombstones of ids that are unique only within ``scope``, in a table of many scopes."""

    def __init__(self, table: Tombstones, scope: Hashable) -> None:
        self._table = table
        self.scope = scope
        # The table's own dictionary, since each call asks it.
        self.until = table.until

    def leave(self, key: Hashable, now: float) -> None:
        """Leaves a tombstone; a newer one replaces an older one."""
        self._table.leave((self.scope, key), now)

    def leave_all(self, keys: Iterable[Hashable], now: float) -> None:
        """Leaves many tombstones, of ids that have none yet."""
        self._table.leave_all(((self.scope, key) for key in keys), now)

    def require_none(self, key: Hashable, **metadata: object) -> None:
        """Raises :class:`Tombstoned` if the id was released before."""
        if (self.scope, key) in self.until:
            raise Tombstoned(**metadata)

    def __contains__(self, key: Hashable) -> bool:
        return (self.scope, key) in self.until


class ByTenant(Generic[Key, Value]):
    """Things by tenant and key. Reading one tenant's costs nothing for the others'."""

    __slots__ = ("_tables",)

    def __init__(self) -> None:
        self._tables: dict[str, dict[Key, Value]] = {}

    def of(self, tenant: str) -> Mapping[Key, Value]:
        """Returns one tenant's things by key, in the order in which they were added."""
        return self._tables.get(tenant, {})

    def add(self, tenant: str, key: Key, value: Value) -> None:
        """Adds a thing of a tenant."""
        self._tables.setdefault(tenant, {})[key] = value

    def drop(self, tenant: str, key: Key) -> None:
        """Removes a thing of a tenant, which MUST be there."""
        table = self._tables[tenant]
        del table[key]
        if not table:
            del self._tables[tenant]


class Tenant:
    """One tenant's quotas, and counts of what it has. Not thread-safe.

    ``hold_count`` counts the pins, source pins and reservations of all its leases.
    ``named_pin_count`` counts the named pins of all its namespaces, and ``arena_count`` its
    arenas in all tiers. ``tier1_bytes`` is the size of all slots of its arenas in tier 1.
    ``announced_bytes`` is the size of the tokens of its prefills in flight. ``tombstones``
    are those of all its ids; ``lease_tombstones`` are those of leases among them.
    ``group_page_count`` counts the pages of KV cache groups that its pins hold, and those that its
    reservations have inserted. Stores share pages of a tenant only if they have the same ``key`` of
    it, which is empty for most.
    """

    __slots__ = (
        "_limits",
        "announced_bytes",
        "arena_count",
        "group_page_count",
        "hold_count",
        "key",
        "lease_count",
        "lease_tombstones",
        "name",
        "named_pin_count",
        "namespace_count",
        "quotas",
        "tier1_bytes",
        "tombstones",
    )

    def __init__(self, name: str, quotas: Quotas, limits: Limits, key: bytes = b"") -> None:
        self.name = name
        self.key = key
        self.quotas = quotas
        self.lease_count = 0
        self.namespace_count = 0
        self.arena_count = 0
        self.tier1_bytes = 0
        self.hold_count = 0
        self.group_page_count = 0
        self.named_pin_count = 0
        self.announced_bytes = 0
        self.tombstones = Tombstones(limits.tombstone_ttl, limits.max_tombstones)
        self.lease_tombstones = TombstonesOf(self.tombstones, "lease")
        self._limits = limits

    @property
    def bytes_left(self) -> int | None:
        """The number of bytes that its arenas may still grow by, or None without a quota."""
        quota = self.quotas.tier1_bytes
        return None if quota is None else max(quota - self.tier1_bytes, 0)

    def is_empty(self) -> bool:
        """Returns True if nothing refers to the tenant any more."""
        had = self.lease_count or self.namespace_count or self.arena_count
        return not (had or self.hold_count or self.tombstones)

    def require_lease_room(self) -> None:
        """Raises :class:`QuotaExceeded` if another lease is too many."""
        if self.lease_count >= self.quotas.leases:
            raise QuotaExceeded(quota="leases", maximum=self.quotas.leases)

    def require_namespace_room(self) -> None:
        """Raises :class:`QuotaExceeded` if another namespace is too many."""
        maximum = self._limits.max_namespaces
        if self.namespace_count >= maximum:
            raise QuotaExceeded(quota="namespaces", maximum=maximum)

    def require_arena_room(self, tier_count: int) -> None:
        """Raises :class:`QuotaExceeded` if pages of another size, in so many tiers, are too many.

        An arena outlives its last namespace, together with its memory.
        """
        maximum = self._limits.max_namespaces
        if self.arena_count >= maximum * tier_count:
            raise QuotaExceeded(quota="arenas", maximum=maximum)

    def require_page_room(self, page_bytes: int) -> None:
        """Raises :class:`QuotaExceeded` if one page of this size exceeds the quota of bytes."""
        quota = self.quotas.tier1_bytes
        if quota is not None and page_bytes > quota:
            raise QuotaExceeded(quota="tier1_bytes", maximum=quota, value=page_bytes)

    def require_group_room(self, count: int) -> None:
        """Raises :class:`QuotaExceeded` if ``count`` more held pages of groups are too many."""
        maximum = self._limits.max_held_group_pages
        if self.group_page_count + count > maximum:
            raise QuotaExceeded(quota="held_group_pages", maximum=maximum)

    def has_room_to_announce(self, size: int) -> bool:
        """Returns True if prefills may keep ``size`` more bytes of tokens."""
        return self.announced_bytes + size <= self._limits.max_announced_bytes

    def require_named_pin_room(self) -> None:
        """Raises :class:`QuotaExceeded` if another named pin is too many."""
        if self.named_pin_count >= self.quotas.named_pins:
            raise QuotaExceeded(quota="named_pins", maximum=self.quotas.named_pins)
