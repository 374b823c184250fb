"""A snapshot as JSON: bounded in length, and without an id that a call takes."""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Items
from typing import Any, Final, TypeVar

from google.protobuf.duration_pb2 import Duration

from kvstore.v1 import lease_pb2, store_pb2
from kvstore_ctl.page.store_feed import Snapshot, lease_key
from kvstore_ctl.top.rates import uptime_of

# Most entries of a list. The number of those left out is beside it.
MAX_ENTRIES: Final = 100
STATES: Final = ("free", "reserved", "cached", "detached", "moving", "quarantined")
Entry = dict[str, Any]
T = TypeVar("T")


def state_json(snapshot: Snapshot) -> Entry:
    """Returns totals, tiers, tenants, namespaces and leases.

    The epoch is text: it has more digits than a number of JSON keeps.
    """
    stats = snapshot.stats
    lengths = {
        "tenants": len(stats.tenants),
        "namespaces": len(stats.namespaces),
        "leases": len(stats.leases),
    }
    fields = stats.counters.DESCRIPTOR.fields
    return {
        "epoch": str(stats.store_epoch),
        "uptime": round(uptime_of(stats), 3),
        "totals": {each.name: getattr(stats.counters, each.name) for each in fields},
        "held": {
            "pins": stats.pin_count,
            "named_pins": stats.named_pin_count,
            "reservations": stats.reservation_count,
            "in_flight": stats.in_flight_count,
            "expired_leases": stats.expired_lease_count,
            "quarantined_slots": stats.quarantined_slot_count,
            "detached_pages": stats.detached_page_count,
            "oldest_quarantine_age": _optional(stats, "oldest_quarantine_age"),
        },
        "tiers": [*_memory_tiers(stats), *_disk_tier(stats.tier_3)],
        "tenants": _largest(stats.tenants, _tenant, lambda each: each.tier1_bytes),
        "namespaces": _largest(
            stats.namespaces,
            lambda each: _namespace(each, snapshot.namespaces[each.namespace_id]),
            _cached_bytes,
        ),
        "leases": _largest(
            stats.leases,
            lambda each: _lease(each, snapshot.leases[lease_key(each)]),
            _lease_weight,
        ),
        "left_out": {name: max(each - MAX_ENTRIES, 0) for name, each in lengths.items()},
    }


def holds_json(holds: Items[lease_pb2.HoldInfo], numbers: Mapping[bytes, int]) -> Entry:
    """Returns the holds of a lease, the oldest first; ``numbers`` has each namespace's by id."""
    return {
        "holds": [
            {
                "kind": lease_pb2.HoldInfo.Kind.Name(each.kind).removeprefix("KIND_").lower(),
                "namespace": numbers.get(each.namespace_id),
                "pages": each.page_count,
                "tokens": each.token_count,
                "detached_pages": each.detached_page_count,
                "slots": each.slot_count,
                "announced_tokens": each.announced_token_count,
                "age": _seconds(each.age),
            }
            for each in holds[:MAX_ENTRIES]
        ],
        "left_out": max(len(holds) - MAX_ENTRIES, 0),
    }


def _largest(
    entries: Iterable[T], shown: Callable[[T], Entry], weight: Callable[[T], Any]
) -> list[Entry]:
    """Returns the entries of most weight as JSON; the first of those with the same weight."""
    return [shown(each) for each in sorted(entries, key=weight, reverse=True)[:MAX_ENTRIES]]


def _memory_tiers(stats: store_pb2.GetStatsResponse) -> list[Entry]:
    """Returns bytes and slots of tiers 1 and 2 by state, over all arenas of each."""
    tiers = {int(each.tier): _tier(each.tier, each.size_bytes) for each in stats.tier_budgets}
    for arena in stats.arenas:
        tier = tiers.setdefault(arena.tier, _tier(arena.tier, 0))
        tier["extents"] += arena.extent_count
        tier["retiring_extents"] += arena.retiring_extent_count
        for state in STATES:
            count = getattr(arena, f"{state}_slot_count")
            tier["slots"][state] += count
            tier["bytes"][state] += count * arena.slot_bytes
    return [tiers[tier] for tier in sorted(tiers)]


def _tier(tier: int, budget: int) -> Entry:
    return {
        "tier": tier,
        "budget": budget,
        "extents": 0,
        "retiring_extents": 0,
        "slots": dict.fromkeys(STATES, 0),
        "bytes": dict.fromkeys(STATES, 0),
    }


def _disk_tier(disk: store_pb2.Tier3Stats) -> list[Entry]:
    if disk.state == disk.STATE_ABSENT:
        return []
    used = disk.size_bytes * disk.page_count // max(disk.slot_count, 1)
    return [
        {
            "tier": 3,
            "state": store_pb2.Tier3Stats.State.Name(disk.state).removeprefix("STATE_").lower(),
            "budget": disk.size_bytes,
            "slots": {"cached": disk.page_count, "free": disk.slot_count - disk.page_count},
            "bytes": {"cached": used, "free": disk.size_bytes - used},
            "written_pages": disk.written_page_count,
            "read_pages": disk.read_page_count,
            "evicted_pages": disk.evicted_page_count,
            "bandwidth": round(disk.bytes_per_second),
            "declined_loads": disk.declined_load_count,
        }
    ]


def _tenant(tenant: store_pb2.TenantStats) -> Entry:
    quotas = tenant.quotas
    return {
        "tenant": tenant.tenant,
        "tier1_bytes": tenant.tier1_bytes,
        "leases": tenant.lease_count,
        "pins": tenant.pin_count,
        "named_pins": tenant.named_pin_count,
        "quota_bytes": quotas.tier1_bytes if quotas.HasField("tier1_bytes") else None,
    }


def _namespace(namespace: store_pb2.NamespaceInfo, number: int) -> Entry:
    counters, identity = namespace.counters, namespace.identity
    return {
        "number": number,
        "name": identity.display_name,
        "tenant": namespace.tenant,
        "model": identity.model_digest.hex()[:8],
        "adapter": bool(identity.adapter_digest),
        "page_tokens": namespace.layout.page_tokens,
        "pages": namespace.cached_page_count,
        "bytes": _cached_bytes(namespace),
        "nodes": namespace.node_count,
        "pins": namespace.pin_count,
        "named_pins": namespace.named_pin_count,
        "lookups": counters.lookup_count,
        "asked": counters.asked_token_count,
        "found": counters.matched_token_count + counters.copied_token_count,
        "age": _seconds(namespace.age),
    }


def _cached_bytes(namespace: store_pb2.NamespaceInfo) -> int:
    return namespace.cached_page_count * namespace.layout.page_bytes


def _lease(lease: lease_pb2.LeaseInfo, number: int) -> Entry:
    counters = lease.counters
    return {
        "number": number,
        "name": lease.display_name,
        "tenant": lease.tenant,
        "expired": lease.state == lease.STATE_EXPIRED,
        "age": _seconds(lease.age),
        "since_renewal": _seconds(lease.since_renewal),
        "pids": [each.pid for each in lease.processes],
        "pins": lease.pin_count,
        "reservations": lease.reservation_count,
        "in_flight": lease.in_flight_count,
        "reserved_slots": lease.reserved_slot_count,
        "quarantined_slots": lease.quarantined_slot_count,
        "pinned_pages": lease.pinned_page_count,
        "detached_pages": lease.detached_page_count,
        "oldest_hold_age": _optional(lease, "oldest_hold_age"),
        "asked": counters.asked_token_count,
        "found": counters.matched_token_count + counters.copied_token_count,
    }


def _lease_weight(lease: lease_pb2.LeaseInfo) -> tuple[bool, int]:
    """Returns a key by which expired leases come first, then those that hold most."""
    expired = lease.state == lease.STATE_EXPIRED
    return expired, lease.pinned_page_count + lease.reserved_slot_count


def _seconds(span: Duration) -> float:
    return round(span.ToNanoseconds() / 1e9, 1)


def _optional(message: store_pb2.GetStatsResponse | lease_pb2.LeaseInfo, span: str) -> float | None:
    return _seconds(getattr(message, span)) if message.HasField(span) else None
