"""What a store looks like at one moment: everything here is a copy."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from kvstore.core.arena import Arena
from kvstore.core.cache import PrefixCache
from kvstore.core.lease import Lease
from kvstore.core.lease_stats import LeaseStats, lease_stats, oldest
from kvstore.core.named_pin import NamedPin
from kvstore.core.namespace import Namespace
from kvstore.core.tenant_stats import TenantStats, tenant_stats
from kvstore.core.values.counters import Counters
from kvstore.core.values.events import Cause
from kvstore.core.values.layout import NamespaceIdentity, PageLayout
from kvstore.core.values.requests import Identity
from kvstore.core.values.slots import SlotState
from kvstore.core.values.tokens import TOKEN_BYTES


@dataclass(frozen=True)
class NamespaceStats:
    """One namespace; numbers count by creation."""

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
    """Slots of one arena by state; they sum to ``slot_count``. Retiring extents are counted."""

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
    """One consistent snapshot of what an identity may see."""

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
    # Of an admin's: pages removed, by why.
    removed_pages: dict[Cause, int] = field(default_factory=dict)
    # Of an admin's: what namespaces counted that are deleted, by tenant.
    deleted: dict[str, Counters] = field(default_factory=dict)


@dataclass(frozen=True)
class NamedPinStats:
    """One named pin; numbers count by making. Times in seconds; ``remaining`` None: no end."""

    number: int
    namespace_id: bytes
    name: str
    pinned_token_count: int
    age: float
    remaining: float | None


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
    """Return a snapshot; an admin's totals include leases and tenants of all.

    For others the totals are the sums over their tenant's namespaces.
    """
    leases = [lease_stats(each, now) for each in cache.table.visible(identity)]
    visible = cache.visible_namespaces(identity)
    leaving = [each for each in cache.leaving if identity.sees(each.tenant)]
    pins = count_pins(cache.table.visible(identity), Counter())
    return Stats(
        epoch=cache.epoch,
        counters=cache.counters.copy() if identity.admin else _sum(visible),
        arenas=tuple(_arena(each) for each in cache.visible_arenas(identity)),
        namespaces=tuple(namespace_stats(each, pins, now) for each in visible),
        leases=tuple(leases),
        pin_count=sum(each.pin_count for each in leases),
        named_pin_count=sum(len(each.named_pins) for each in visible),
        reservation_count=sum(each.reservation_count for each in leases),
        in_flight_count=sum(each.in_flight_count for each in leases),
        expired_lease_count=sum(each.expired for each in leases),
        quarantined_slot_count=sum(each.quarantined_slot_count for each in leases),
        detached_page_count=sum(each.detached_page_count for each in (*visible, *leaving)),
        oldest_quarantine_age=oldest(each.oldest_quarantine_age for each in leases),
        tenants=tuple(tenant_stats(each) for each in cache.table.visible_holdings(identity)),
        removed_pages=dict(cache.removed_pages) if identity.admin else {},
        deleted=_copies(cache.deleted) if identity.admin else {},
    )


def prefixes(namespace: Namespace, *, after: int, count: int, max_tokens: int) -> list[PrefixStats]:
    """Return up to ``count`` nodes with numbers above ``after``, by number.

    The first ``max_tokens`` tokens of each node's run are given.
    """
    nodes = namespace.index.nodes
    later = islice((nodes[each] for each in nodes if each > after), count)
    return [
        PrefixStats(
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
        for node in later
    ]


def named_pin_stats(pin: NamedPin, now: float) -> NamedPinStats:
    """Return what a named pin holds at a moment."""
    return NamedPinStats(
        number=pin.hold_id,
        namespace_id=pin.namespace.namespace_id,
        name=pin.name,
        pinned_token_count=pin.token_count,
        age=now - pin.taken_at,
        remaining=None if pin.due == inf else max(pin.due - now, 0.0),
    )


def _copies(counters: dict[str, Counters]) -> dict[str, Counters]:
    return {name: each.copy() for name, each in counters.items()}


def _sum(namespaces: Iterable[Namespace]) -> Counters:
    total = Counters()
    for each in namespaces:
        total.add(each.counters)
    return total


def count_pins(leases: Iterable[Lease], pins: "Counter[bytes]") -> "Counter[bytes]":
    """Add leases' pins to those of each namespace, by its id, and return them."""
    for lease in leases:
        for pin in lease.pins.values():
            pins[pin.namespace.namespace_id] += 1
    return pins


def namespace_stats(namespace: Namespace, pins: "Counter[bytes]", now: float) -> NamespaceStats:
    """Return what a namespace has, with the ``pins`` that leases have of each."""
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
        named_pin_count=len(namespace.named_pins),
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
