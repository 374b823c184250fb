"""Snapshots of the cache at one moment: store, tenants, leases, holds, prefixes, tree rows.

Everything here is a copy.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf

from kvstore.core.cache import PrefixCache
from kvstore.core.index.node import Node
from kvstore.core.leases.holds import Pin, Reservation, SourcePin
from kvstore.core.leases.lease import Lease, LeaseState
from kvstore.core.leases.named_pins import NamedPin
from kvstore.core.pool.arena import Arena
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.tenant import Tenant
from kvstore.core.values.counters import Counters
from kvstore.core.values.event_log import Cause
from kvstore.core.values.layout import NamespaceIdentity, PageLayout
from kvstore.core.values.limits import Quotas
from kvstore.core.values.requests import Identity
from kvstore.core.values.slots import SlotState
from kvstore.core.values.tokens import TOKEN_BYTES


class HoldKind(Enum):
    """The kinds of holds."""

    PIN = 1
    SOURCE = 2
    RESERVATION = 3


KINDS = {Pin: HoldKind.PIN, SourcePin: HoldKind.SOURCE, Reservation: HoldKind.RESERVATION}


@dataclass(frozen=True)
class HoldStats:
    """One hold. Numbers count its lease's holds in order of taking. The age is in seconds.

    ``page_count`` pages of its sequence are held, from the beginning, or one source page.
    ``token_count`` are their tokens, and ``detached_page_count`` of the pages are out of the
    index. ``slot_count`` slots are reserved and not published, or in quarantine. Others know that
    it is to compute its sequence through ``announced_token_count`` tokens; zero if they do not.
    """

    number: int
    kind: HoldKind
    hold_id: int
    namespace_id: bytes
    page_count: int
    token_count: int
    detached_page_count: int
    slot_count: int
    announced_token_count: int
    age: float


@dataclass(frozen=True)
class ProcessStats:
    """One attached process."""

    pid: int
    uid: int
    connected: bool
    mapped_extent_count: int


@dataclass(frozen=True)
class LeaseStats:
    """One lease and what it holds. Ages are in seconds. Numbers count leases by granting.

    ``in_flight_count`` of its reservations are announced and not computed to their end.
    """

    number: int
    lease_id: bytes
    display_name: str
    tenant: str
    expired: bool
    age: float
    since_renewal: float
    processes: tuple[ProcessStats, ...]
    pin_count: int
    reservation_count: int
    in_flight_count: int
    reserved_slot_count: int
    quarantined_slot_count: int
    pinned_page_count: int
    detached_page_count: int
    oldest_hold_age: float | None
    oldest_quarantine_age: float | None
    counters: Counters


def lease_stats(lease: Lease, now: float) -> LeaseStats:
    """Returns what a lease holds."""
    expired = lease.state is LeaseState.EXPIRED
    slots = lease.unpublished_count()
    holds = [*lease.pins.values(), *lease.reservations.values()]
    quarantined = slots if lease.slot_state is SlotState.QUARANTINED else 0
    # A recovered lease's time to live begins with the recovery, and so does its quarantine.
    began = lease.expired_at if expired else lease.renewed_at
    since = began if quarantined else None
    return LeaseStats(
        number=lease.number,
        lease_id=lease.lease_id,
        display_name=lease.display_name,
        tenant=lease.tenant,
        expired=expired,
        age=now - lease.granted_at,
        since_renewal=now - lease.renewed_at,
        processes=tuple(
            ProcessStats(each.pid, each.uid, each.connected, len(each.mapped))
            for each in lease.processes.values()
        ),
        pin_count=len(lease.pins),
        reservation_count=len(lease.reservations),
        in_flight_count=sum(each.prefill is not None for each in lease.reservations.values()),
        reserved_slot_count=slots - quarantined,
        quarantined_slot_count=quarantined,
        pinned_page_count=sum(each.page_count for each in lease.pins.values()),
        # Skips the holds in a namespace without detached pages.
        detached_page_count=sum(
            each.detached_page_count for each in holds if each.namespace.detached_page_count
        ),
        oldest_hold_age=now - min(each.taken_at for each in holds) if holds else None,
        oldest_quarantine_age=None if since is None else now - since,
        counters=lease.counters.copy(),
    )


def hold_stats(lease: Lease, now: float) -> list[HoldStats]:
    """Returns all that a lease holds, by number."""
    holds = [*lease.pins.values(), *lease.reservations.values()]
    return [_hold(each, now) for each in sorted(holds, key=lambda each: each.number)]


def oldest(ages: Iterable[float | None]) -> float | None:
    """Returns the largest of the ages that are not None."""
    return max((each for each in ages if each is not None), default=None)


def _hold(hold: Pin | SourcePin | Reservation, now: float) -> HoldStats:
    reserved = announced = 0
    if isinstance(hold, Reservation):
        reserved = hold.own_count
        if hold.prefill is not None:
            announced = hold.prefill.end * hold.namespace.layout.page_tokens
    return HoldStats(
        number=hold.number,
        kind=KINDS[type(hold)],
        hold_id=hold.hold_id,
        namespace_id=hold.namespace.namespace_id,
        page_count=hold.page_count,
        token_count=hold.token_count,
        detached_page_count=hold.detached_page_count,
        slot_count=reserved,
        announced_token_count=announced,
        age=now - hold.taken_at,
    )


@dataclass(frozen=True)
class TenantStats:
    """One tenant: its quotas, and what it has."""

    tenant: str
    quotas: Quotas
    tier1_bytes: int
    lease_count: int
    pin_count: int
    named_pin_count: int


def tenant_stats(tenant: Tenant) -> TenantStats:
    """Returns what a tenant has."""
    return TenantStats(
        tenant=tenant.name,
        quotas=tenant.quotas,
        tier1_bytes=tenant.tier1_bytes,
        lease_count=tenant.lease_count,
        pin_count=tenant.hold_count,
        named_pin_count=tenant.named_pin_count,
    )


@dataclass(frozen=True)
class NamespaceStats:
    """One namespace. Numbers count namespaces by creation."""

    number: int
    namespace_id: bytes
    tenant: str
    identity: NamespaceIdentity
    layout: PageLayout
    arena_id: int
    cached_page_count: int
    node_count: int
    detached_page_count: int
    pin_count: int
    named_pin_count: int
    counters: Counters
    age: float


@dataclass(frozen=True)
class ArenaStats:
    """The slots of one arena by state, which sum to ``slot_count``. Counts retiring extents too."""

    arena_id: int
    tenant: str
    tier: int
    slot_bytes: int
    extent_count: int
    retiring_extent_count: int
    slot_count: int
    slots: dict[SlotState, int]


@dataclass(frozen=True)
class Stats:
    """A snapshot of what an identity may see."""

    epoch: int
    counters: Counters
    arenas: tuple[ArenaStats, ...]
    namespaces: tuple[NamespaceStats, ...]
    leases: tuple[LeaseStats, ...]
    pin_count: int
    named_pin_count: int
    reservation_count: int
    in_flight_count: int
    expired_lease_count: int
    quarantined_slot_count: int
    detached_page_count: int
    oldest_quarantine_age: float | None
    tenants: tuple[TenantStats, ...] = ()
    # For an admin: removed pages by cause.
    removed_pages: dict[Cause, int] = field(default_factory=dict)
    # For an admin: the counters of deleted namespaces, by tenant.
    deleted: dict[str, Counters] = field(default_factory=dict)


@dataclass(frozen=True)
class NamedPinStats:
    """One named pin. Numbers count by making. Times in seconds; no end is None.

    The store that hosts share had the first ``remote_token_count`` tokens when it was last asked.
    """

    number: int
    namespace_id: bytes
    name: str
    pinned_token_count: int
    age: float
    remaining: float | None
    remote_token_count: int = 0


@dataclass(frozen=True)
class PrefixStats:
    """One node of a namespace's tree, with its first tokens."""

    node_id: int
    parent_node_id: int
    start_page: int
    page_count: int
    token_count: int
    child_count: int
    pin_count: int
    hit_count: int
    tokens: bytes


def snapshot(cache: PrefixCache, identity: Identity, now: float) -> Stats:
    """Returns a snapshot. An admin's totals include the leases and tenants of all.

    For others the totals are the sums over their tenant's namespaces.
    """
    holders = cache.table.visible(identity)
    pins = count_pins(holders, Counter())
    return with_rows(
        summary(cache, identity),
        [lease_stats(each, now) for each in holders],
        [namespace_stats(each, pins, now) for each in cache.visible_namespaces(identity)],
        sums_counters=not identity.admin,
    )


def summary(cache: PrefixCache, identity: Identity) -> Stats:
    """Returns a snapshot without leases and namespaces, whose totals count nothing of them."""
    leaving = [each for each in cache.state.leaving if identity.sees(each.tenant)]
    return Stats(
        epoch=cache.epoch,
        counters=cache.counters.copy() if identity.admin else Counters(),
        arenas=tuple(_arena(each) for each in cache.visible_arenas(identity)),
        namespaces=(),
        leases=(),
        pin_count=0,
        named_pin_count=0,
        reservation_count=0,
        in_flight_count=0,
        expired_lease_count=0,
        quarantined_slot_count=0,
        detached_page_count=sum(each.detached_page_count for each in leaving),
        oldest_quarantine_age=None,
        tenants=tuple(tenant_stats(each) for each in cache.table.visible_tenants(identity)),
        removed_pages=dict(cache.state.removed_pages) if identity.admin else {},
        deleted=_copies(cache.state.deleted) if identity.admin else {},
    )


def with_rows(
    stats: Stats,
    leases: list[LeaseStats],
    namespaces: list[NamespaceStats],
    *,
    sums_counters: bool,
) -> Stats:
    """Returns a summary with these leases and namespaces, which may be of earlier moments.

    With ``sums_counters`` the counters are the sums of the namespaces'.
    """
    held_page_count = sum(each.detached_page_count for each in namespaces)
    return replace(
        stats,
        counters=_sum(namespaces) if sums_counters else stats.counters,
        namespaces=tuple(namespaces),
        leases=tuple(leases),
        pin_count=sum(each.pin_count for each in leases),
        named_pin_count=sum(each.named_pin_count for each in namespaces),
        reservation_count=sum(each.reservation_count for each in leases),
        in_flight_count=sum(each.in_flight_count for each in leases),
        expired_lease_count=sum(each.expired for each in leases),
        quarantined_slot_count=sum(each.quarantined_slot_count for each in leases),
        detached_page_count=stats.detached_page_count + held_page_count,
        oldest_quarantine_age=oldest(each.oldest_quarantine_age for each in leases),
    )


def later_nodes(namespace: Namespace, after: int, count: int) -> list[int]:
    """Returns the numbers of up to ``count`` nodes above ``after``, in order.

    Costs a copy of all numbers. It is one step of the interpreter, so it needs no mutex.
    """
    numbers = list(namespace.index.nodes)
    first = bisect_right(numbers, after)
    return numbers[first : first + count]


def prefix_stats(
    namespace: Namespace, numbers: Iterable[int], max_tokens: int
) -> list[PrefixStats]:
    """Returns the nodes of these numbers that are in the tree.

    Each has the first ``max_tokens`` tokens of its run.
    """
    nodes = map(namespace.index.nodes.get, numbers)
    return [_prefix(node, max_tokens) for node in nodes if node is not None]


def _prefix(node: Node, max_tokens: int) -> PrefixStats:
    return PrefixStats(
        node_id=node.number,
        parent_node_id=node.parent.number if node.parent else 0,
        start_page=node.start,
        page_count=len(node.slots),
        token_count=len(node.edge) // TOKEN_BYTES,
        child_count=len(node.children),
        pin_count=len(node.anchors),
        hit_count=node.hits + sum(each.hits for each in node.steps or ()),
        tokens=node.edge[: max_tokens * TOKEN_BYTES],
    )


def named_pin_stats(pin: NamedPin, now: float) -> NamedPinStats:
    """Returns what a named pin holds at a moment."""
    return NamedPinStats(
        number=pin.hold_id,
        namespace_id=pin.namespace.namespace_id,
        name=pin.name,
        pinned_token_count=pin.token_count,
        age=now - pin.taken_at,
        remaining=None if pin.due == inf else max(pin.due - now, 0.0),
        remote_token_count=pin.stored_end * pin.namespace.layout.page_tokens,
    )


def _copies(counters: dict[str, Counters]) -> dict[str, Counters]:
    return {name: each.copy() for name, each in counters.items()}


def _sum(namespaces: Iterable[NamespaceStats]) -> Counters:
    total = Counters()
    for each in namespaces:
        total.add(each.counters)
    return total


def count_pins(leases: Iterable[Lease], pins: "Counter[bytes]") -> "Counter[bytes]":
    """Adds the leases' pins to the counts by namespace id, and returns the counts."""
    for lease in leases:
        for pin in lease.pins.values():
            pins[pin.namespace.namespace_id] += 1
    return pins


def namespace_stats(namespace: Namespace, pins: "Counter[bytes]", now: float) -> NamespaceStats:
    """Returns what a namespace has. ``pins`` counts the pins of leases by namespace id."""
    return NamespaceStats(
        number=namespace.number,
        namespace_id=namespace.namespace_id,
        tenant=namespace.tenant,
        identity=namespace.identity,
        layout=namespace.layout,
        arena_id=namespace.arena.arena_id,
        cached_page_count=namespace.index.page_count,
        node_count=len(namespace.index.nodes),
        detached_page_count=namespace.detached_page_count,
        pin_count=pins[namespace.namespace_id],
        named_pin_count=namespace.named_pin_count,
        counters=namespace.counters.copy(),
        age=now - namespace.created_at,
    )


def _arena(arena: Arena) -> ArenaStats:
    return ArenaStats(
        arena_id=arena.arena_id,
        tenant=arena.tenant,
        tier=arena.tier,
        slot_bytes=arena.slot_bytes,
        extent_count=len(arena.extents),
        retiring_extent_count=len(arena.retiring),
        slot_count=arena.slot_count,
        slots={state: arena.counts[state] for state in SlotState},
    )
