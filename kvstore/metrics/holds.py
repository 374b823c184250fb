"""Metrics of leases and their holds, by owner name."""

from typing import Final

from kvstore.metrics.metric import Sheet, gauge
from kvstore.metrics.names import PassingNames, TenantNames
from kvstore.metrics.view import View

BY: Final = "tenant owner"

LEASES: Final = gauge(
    "kvstore_leases",
    f"{BY} state",
    "Leases by the name that their worker gave: `active`, or `expired`, which may only let go.",
    "`expired` stays up: a worker hangs or was stopped, and what it reserved is in quarantine.",
)
PROCESSES: Final = gauge(
    "kvstore_attached_processes",
    BY,
    "Processes attached under those leases.",
    "Fewer than ranks: one died, or cannot attach; `doctor`.",
)
PINS: Final = gauge(
    "kvstore_pins",
    BY,
    "Pins and source pins.",
    "Only grows: a worker leaks pins; `kvstore-ctl leases LEASE` shows them by age.",
)
PINNED_PAGES: Final = gauge(
    "kvstore_pinned_pages",
    BY,
    "Pages that those pins name; a page is counted for each pin.",
    "Nearly all that is cached: running requests need most of the pool; sizing.md.",
)
RESERVATIONS: Final = gauge(
    "kvstore_reservations",
    BY,
    "Reservations.",
    "Only grows: as with pins.",
)
HELD_SLOTS: Final = gauge(
    "kvstore_held_slots",
    f"{BY} state",
    "Slots reserved and not published: `reserved`, or `quarantined` under an expired lease.",
    "`quarantined`: end that worker's processes, and its slots return.",
)
NAMED_PINS: Final = gauge(
    "kvstore_named_pins",
    "tenant",
    "Named pins of operators.",
    "More than anybody remembers: `kvstore-ctl pins`, and give them a time to live.",
)
PREFILLS: Final = gauge(
    "kvstore_in_flight_prefills",
    "",
    "Reservations whose prompt others know to be under way.",
    "Stays up without inserts: who computes it hangs; others go on after `yield_idle`.",
)
OLDEST_HOLD: Final = gauge(
    "kvstore_oldest_hold_seconds",
    "",
    "Age of the oldest pin or reservation; 0 without any.",
    "Longer than any request: a leak, or a worker that hangs; `kvstore-ctl leases`.",
)
OLDEST_QUARANTINE: Final = gauge(
    "kvstore_oldest_quarantine_seconds",
    "",
    "Time since the first lease expired that still has slots in quarantine; 0 without any.",
    "Minutes: end the worker's processes; failures.md.",
)
METRICS: Final = (
    *(LEASES, PROCESSES, PINS, PINNED_PAGES, RESERVATIONS, HELD_SLOTS),
    *(NAMED_PINS, PREFILLS, OLDEST_HOLD, OLDEST_QUARANTINE),
)


def write(view: View, sheet: Sheet, names: TenantNames, owners: PassingNames) -> None:
    """Adds this module's metrics to the sheet."""
    stats = view.stats
    owned = [(names.tenant(each.tenant), each) for each in stats.leases]
    owners.show((tenant, lease.display_name) for tenant, lease in owned)
    for tenant, lease in owned:
        by = owners.of(tenant, lease.display_name)
        sheet.add(LEASES, not lease.expired, *by, "active")
        sheet.add(LEASES, lease.expired, *by, "expired")
        sheet.add(PROCESSES, len(lease.processes), *by)
        sheet.add(PINS, lease.pin_count, *by)
        sheet.add(PINNED_PAGES, lease.pinned_page_count, *by)
        sheet.add(RESERVATIONS, lease.reservation_count, *by)
        sheet.add(HELD_SLOTS, lease.reserved_slot_count, *by, "reserved")
        sheet.add(HELD_SLOTS, lease.quarantined_slot_count, *by, "quarantined")
        sheet.top(OLDEST_HOLD, lease.oldest_hold_age or 0.0)
    for each in stats.tenants:
        sheet.add(NAMED_PINS, each.named_pin_count, names.tenant(each.tenant))
    sheet.add(PREFILLS, stats.in_flight_count)
    sheet.top(OLDEST_HOLD, 0.0)
    sheet.add(OLDEST_QUARANTINE, stats.oldest_quarantine_age or 0.0)
