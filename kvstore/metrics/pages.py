"""Metrics of pages: duplicates, returns, checks and removals."""

from typing import Final

from kvstore.core.values.events import Cause
from kvstore.metrics.metric import Sheet, counter, gauge
from kvstore.metrics.view import View

DUPLICATES: Final = counter(
    "kvstore_duplicate_pages_total",
    "",
    "Pages that were computed although another worker had published them meanwhile.",
    "Grows with the inserted: many workers compute one prompt; one-prefill.md.",
)
RETURNED: Final = counter(
    "kvstore_returned_pages_total",
    "",
    "Pages published again soon after they were evicted.",
    "Grows with the inserted: thrash; how-to-monitor.md.",
)
THRASH: Final = gauge(
    "kvstore_thrash_ratio",
    "",
    "Of the pages inserted in the last whole minute, the part that had just been evicted.",
    "Above 0.2: twice the memory would have kept them; how-to-monitor.md, thrash.",
)
EXHAUSTED: Final = counter(
    "kvstore_exhausted_reserves_total",
    "",
    "Reserves that found no room, or no lookup's rest could be reserved.",
    "Grows: all that is cached is held, or the pool is too small; `kvstore-ctl leases`.",
)
YIELDED: Final = counter(
    "kvstore_yielded_lookups_total",
    "",
    "Lookups that waited for what another worker was computing already.",
    "Nothing by itself: each saved a prefill.",
)
VERIFIED: Final = counter(
    "kvstore_verified_pages_total",
    "",
    "Pages that were read and compared with their checksum before they were handed out.",
    "Stands still with lookups that hit: `verify_rate` is 0, or writers give no checksums.",
)
CORRUPT: Final = counter(
    "kvstore_corrupt_pages_total",
    "",
    "Of the verified, those that were not what was written. They left the index.",
    "Any: a worker writes where it should not; set `verify_rate` to 1 and see `page_corrupt`.",
)
REMOVED: Final = counter(
    "kvstore_removed_pages_total",
    "cause",
    "Pages that left the index for good and not for want of room: `removed` by an operator, "
    "`corrupt` and what continued those, with an extent that was `retired`, with a "
    "`namespace_deleted`.",
    "`corrupt`: see `kvstore_corrupt_pages_total`. `retired` again and again: tenants take memory "
    "from each other; limits.md.",
)
DETACHED: Final = gauge(
    "kvstore_detached_pages",
    "",
    "Pages that left the index and are still held.",
    "Stays up: who holds them does not let go; `kvstore-ctl leases`.",
)
NODES: Final = gauge(
    "kvstore_index_nodes",
    "",
    "Nodes of all namespaces' trees.",
    "Grows much faster than cached pages: prompts part after few pages; index-at-scale.md.",
)
METRICS: Final = (
    *(DUPLICATES, RETURNED, THRASH, EXHAUSTED, YIELDED),
    *(VERIFIED, CORRUPT, REMOVED, DETACHED, NODES),
)
# Reasons for removal. Other events of pages have counters of their own.
CAUSES: Final = (Cause.REMOVED, Cause.CORRUPT, Cause.RETIRED, Cause.NAMESPACE_DELETED)


def write(view: View, sheet: Sheet) -> None:
    """Adds this module's metrics to the sheet."""
    stats, counters = view.stats, view.stats.counters
    for metric, value in (
        (DUPLICATES, counters.duplicate_page_count),
        (RETURNED, counters.returned_page_count),
        (THRASH, view.thrash),
        (EXHAUSTED, counters.exhausted_count),
        (YIELDED, counters.yielded_count),
        (VERIFIED, counters.verified_page_count),
        (CORRUPT, counters.corrupt_page_count),
        (DETACHED, stats.detached_page_count),
        (NODES, sum(each.node_count for each in stats.namespaces)),
    ):
        sheet.add(metric, value)
    for cause in CAUSES:
        sheet.add(REMOVED, stats.removed_pages.get(cause, 0), cause.name.lower())
