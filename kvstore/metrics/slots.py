"""Metrics of slots, by state, tier and the tenant of their arena."""

from typing import Final

from kvstore.metrics.metric import Sheet, gauge
from kvstore.metrics.names import TenantNames
from kvstore.metrics.view import View

SLOTS: Final = gauge(
    "kvstore_slots",
    "tier tenant state",
    "Slots by state: free, reserved, cached, detached, moving or quarantined.",
    "`quarantined` stays up: a worker stopped without dying; `kvstore-ctl leases`. No `free` "
    "and few `cached` in tier 1: all is reserved or held.",
)
SLOT_BYTES: Final = gauge(
    "kvstore_slot_bytes",
    "tier tenant state",
    "Their bytes.",
    "One tenant's are most of a tier that others want: its share; limits.md.",
)
TIER_BYTES: Final = gauge(
    "kvstore_tier_bytes",
    "tier",
    "Bytes that a memory tier may take.",
    "Never by itself: it is the setting.",
)
EXTENTS: Final = gauge(
    "kvstore_extents",
    "tier tenant state",
    "Extents: `lasting`, or `retiring`, which are given back once nobody maps them.",
    "`retiring` stays up: a worker keeps a mapping; `extent_still_mapped` in the log.",
)
METRICS: Final = (SLOTS, SLOT_BYTES, TIER_BYTES, EXTENTS)


def write(view: View, sheet: Sheet, names: TenantNames) -> None:
    """Adds this module's metrics to the sheet."""
    for tier, byte_count in view.tier_bytes.items():
        sheet.add(TIER_BYTES, byte_count, str(tier))
    for arena in view.stats.arenas:
        at = str(arena.tier), names.tenant(arena.tenant)
        for state, count in arena.slots.items():
            sheet.add(SLOTS, count, *at, state.name.lower())
            sheet.add(SLOT_BYTES, count * arena.slot_bytes, *at, state.name.lower())
        lasting = arena.extent_count - arena.retiring_extent_count
        sheet.add(EXTENTS, lasting, *at, "lasting")
        sheet.add(EXTENTS, arena.retiring_extent_count, *at, "retiring")
