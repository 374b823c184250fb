"""A snapshot of the store as JSON: bounded in length, and without an id that a call could use."""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import asdict
from typing import Any, Final, TypeVar

from kvstore.core.stats import ArenaStats, HoldStats, LeaseStats, NamespaceStats, Stats, TenantStats
from kvstore.core.values.slots import SlotState
from kvstore.service.tiers.disk_tier import Tier3Use

# Entries of a list; what is left out is counted.
MOST: Final = 100
Entry = dict[str, Any]
T = TypeVar("T")


def state_json(
    stats: Stats, tier3: Tier3Use, *, uptime: float, budgets: Mapping[int, int]
) -> Entry:
    """Returns totals, tiers, tenants, namespaces and leases; ``budgets`` are bytes by tier.

    Leases and namespaces go by numbers, which count them. An epoch is text: it has more
    digits than a number of JSON keeps.
    """
    lengths = {"tenants": stats.tenants, "namespaces": stats.namespaces, "leases": stats.leases}
    return {
        "epoch": str(stats.epoch),
        "uptime": round(uptime, 3),
        "totals": asdict(stats.counters),
        "held": {
            "pins": stats.pin_count,
            "named_pins": stats.named_pin_count,
            "reservations": stats.reservation_count,
            "in_flight": stats.in_flight_count,
            "expired_leases": stats.expired_lease_count,
            "quarantined_slots": stats.quarantined_slot_count,
            "detached_pages": stats.detached_page_count,
            "oldest_quarantine_age": _seconds(stats.oldest_quarantine_age),
        },
        "tiers": [*_memory_tiers(stats.arenas, budgets), *_disk_tier(tier3)],
        "tenants": _largest(stats.tenants, _tenant, lambda each: each.tier1_bytes),
        "namespaces": _largest(stats.namespaces, _namespace, _cached_bytes),
        "leases": _largest(stats.leases, _lease, _lease_weight),
        "left_out": {name: max(len(each) - MOST, 0) for name, each in lengths.items()},
    }


def holds_json(holds: Items[HoldStats], numbers: Mapping[bytes, int]) -> Entry:
    """Returns what a lease holds, the oldest first; ``numbers`` are namespaces' by their ids."""
    return {
        "holds": [
            {
                "number": each.number,
                "kind": each.kind.name.lower(),
                "namespace": numbers.get(each.namespace_id),
                "pages": each.page_count,
                "tokens": each.token_count,
                "detached_pages": each.detached_page_count,
                "slots": each.slot_count,
                "announced_tokens": each.announced_token_count,
                "age": _seconds(each.age),
            }
            for each in holds[:MOST]
        ],
        "left_out": max(len(holds) - MOST, 0),
    }


def _largest(
    entries: Iterable[T], shown: Callable[[T], Entry], weight: Callable[[T], Any]
) -> list[Entry]:
    """Returns those of most weight, as JSON; of the same weight the first."""
    return [shown(each) for each in sorted(entries, key=weight, reverse=True)[:MOST]]


def _memory_tiers(arenas: Iterable[ArenaStats], budgets: Mapping[int, int]) -> list[Entry]:
    """Returns bytes and slots of tiers 1 and 2 by state, over all arenas of each."""
    tiers = {tier: _tier(tier, size) for tier, size in budgets.items()}
    for arena in arenas:
        tier = tiers.setdefault(arena.tier, _tier(arena.tier, 0))
        tier["extents"] += arena.extent_count
        tier["retiring_extents"] += arena.retiring_extent_count
        for state, count in arena.slots.items():
            name = state.name.lower()
            tier["slots"][name] += count
            tier["bytes"][name] += count * arena.slot_bytes
    return [tiers[tier] for tier in sorted(tiers)]


def _tier(tier: int, budget: int) -> Entry:
    return {
        "tier": tier,
        "budget": budget,
        "extents": 0,
        "retiring_extents": 0,
        "slots": {state.name.lower(): 0 for state in SlotState},
        "bytes": {state.name.lower(): 0 for state in SlotState},
    }


def _disk_tier(use: Tier3Use) -> list[Entry]:
    disk = use.disk
    if disk.state.value == "absent":
        return []
    used = disk.size_bytes * disk.page_count // max(disk.slot_count, 1)
    return [
        {
            "tier": 3,
            "state": disk.state.value,
            "budget": disk.size_bytes,
            "slots": {"cached": disk.page_count, "free": disk.slot_count - disk.page_count},
            "bytes": {"cached": used, "free": disk.size_bytes - used},
            "written_pages": disk.counters.written_pages,
            "read_pages": disk.counters.read_pages,
            "evicted_pages": disk.counters.evicted_pages,
            "bandwidth": round(use.bandwidth),
            "declined_loads": use.declined_count,
        }
    ]


def _tenant(tenant: TenantStats) -> Entry:
    return {
        "tenant": tenant.tenant,
        "tier1_bytes": tenant.tier1_bytes,
        "leases": tenant.lease_count,
        "pins": tenant.pin_count,
        "named_pins": tenant.named_pin_count,
        "quota_bytes": tenant.quotas.tier1_bytes,
    }


def _namespace(namespace: NamespaceStats) -> Entry:
    counters = namespace.counters
    return {
        "number": namespace.number,
        "name": namespace.identity.display_name,
        "tenant": namespace.tenant,
        "model": namespace.identity.model_digest.hex()[:8],
        "salted": bool(namespace.identity.salt),
        "adapter": bool(namespace.identity.adapter_digest),
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


def _cached_bytes(namespace: NamespaceStats) -> int:
    return namespace.cached_page_count * namespace.layout.page_bytes


def _lease(lease: LeaseStats) -> Entry:
    counters = lease.counters
    return {
        "number": lease.number,
        "name": lease.display_name,
        "tenant": lease.tenant,
        "expired": lease.expired,
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
        "oldest_hold_age": _seconds(lease.oldest_hold_age),
        "asked": counters.asked_token_count,
        "found": counters.matched_token_count + counters.copied_token_count,
    }


def _lease_weight(lease: LeaseStats) -> tuple[bool, int]:
    """Late ones first, then those that hold most."""
    return lease.expired, lease.pinned_page_count + lease.reserved_slot_count


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
