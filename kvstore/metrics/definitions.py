"""The definitions of all metrics, by area."""

from typing import Final

from kvstore.metrics.metric import counter, gauge, histogram
from kvstore.metrics.remote_definitions import OF_REMOTE
from kvstore.metrics.scrape import (
    ARENAS,
    BUILD,
    CACHED_PAGES,
    CALLS,
    DISK,
    KV_EVENTS,
    LEASES,
    MOVES,
    NAMESPACES,
    REMOVALS,
    REQUESTS,
    SLOTS,
    STORE,
    SUCCESSION,
    TENANTS,
    THREADS,
    TIERS,
)
from kvstore.service.page_io.slow_tier import TierState

OF_LOOKUPS: Final = (
    counter(
        "kvstore_lookups_total",
        "Matches answered: `full`, `partial`, or `miss`. `other` are those beyond the bound on "
        "names.",
        "Mostly `miss` where prompts begin alike: how-to-monitor.md, low hit rate.",
        NAMESPACES.split(
            "outcome",
            full=lambda counts: counts.full_hit_count,
            partial=lambda counts: counts.partial_hit_count,
            miss=lambda counts: counts.miss_count,
        ),
    ),
    counter(
        "kvstore_asked_tokens_total",
        "Tokens of the prompts that matches asked about.",
        "Stands still while workers serve: they do not use the store; see their log and `doctor`.",
        NAMESPACES.each(lambda counts: counts.asked_token_count),
    ),
    counter(
        "kvstore_matched_tokens_total",
        "Of the asked tokens, those found and used in place. Over the asked: the hit rate.",
        "Falls against the asked: how-to-monitor.md, low hit rate.",
        NAMESPACES.each(lambda counts: counts.matched_token_count),
    ),
    counter(
        "kvstore_copied_tokens_total",
        "Of the asked tokens, those found in a page to be copied, whose end is another's.",
        "Large against the matched: prompts part early within pages; try smaller pages.",
        NAMESPACES.each(lambda counts: counts.copied_token_count),
    ),
    counter(
        "kvstore_next_tokens_total",
        "Matches that gave the stored next token too, so that nothing had to be computed.",
        "Zero where greedy prompts repeat: the engine does not ask for it.",
        NAMESPACES.each(lambda counts: counts.next_token_count),
    ),
    counter(
        "kvstore_inserted_pages_total",
        "Pages published.",
        "Stands still with misses: workers cannot reserve; see `kvstore_exhausted_reserves_total`.",
        NAMESPACES.each(lambda counts: counts.inserted_page_count),
    ),
    counter(
        "kvstore_evicted_pages_total",
        "Pages that left the index: for want of room (`pressure`), replaced by a fuller page "
        "(`superseded`), or `removed`, of which `kvstore_removed_pages_total` has the causes.",
        "`pressure` grows as fast as pages are inserted: more memory, or tier 2; sizing.md.",
        NAMESPACES.split(
            "reason",
            pressure=lambda counts: counts.evicted_page_count,
            superseded=lambda counts: counts.superseded_page_count,
            removed=lambda counts: counts.removed_page_count,
        ),
    ),
    gauge(
        "kvstore_cached_pages",
        "Pages in the index now, in whichever memory tier.",
        "Falls without pressure: an operator removed pages, or a tenant's extents went to another.",
        CACHED_PAGES.each(float),
    ),
)
OF_PAGES: Final = (
    counter(
        "kvstore_duplicate_pages_total",
        "Pages that were computed although another worker had published them meanwhile.",
        "Grows with the inserted: many workers compute one prompt; one-prefill.md.",
        STORE.each(lambda view: view.stats.counters.duplicate_page_count),
    ),
    counter(
        "kvstore_returned_pages_total",
        "Pages published again soon after they were evicted.",
        "Grows with the inserted: thrash; how-to-monitor.md.",
        STORE.each(lambda view: view.stats.counters.returned_page_count),
    ),
    gauge(
        "kvstore_thrash_ratio",
        "Of the pages inserted in the last whole minute, the part that had just been evicted.",
        "Above 0.2: twice the memory would have kept them; how-to-monitor.md, thrash.",
        STORE.each(lambda view: view.thrash),
    ),
    counter(
        "kvstore_exhausted_reserves_total",
        "Reserves that found no room, or no lookup's rest could be reserved.",
        "Grows: all that is cached is held, or the pool is too small; `kvstore-ctl leases`.",
        STORE.each(lambda view: view.stats.counters.exhausted_count),
    ),
    counter(
        "kvstore_yielded_lookups_total",
        "Lookups that waited for what another worker was computing already.",
        "Nothing by itself: each saved a prefill.",
        STORE.each(lambda view: view.stats.counters.yielded_count),
    ),
    counter(
        "kvstore_verified_pages_total",
        "Pages that were read and compared with their checksum before they were handed out.",
        "Stands still with lookups that hit: `verify_rate` is 0, or writers give no checksums.",
        STORE.each(lambda view: view.stats.counters.verified_page_count),
    ),
    counter(
        "kvstore_corrupt_pages_total",
        "Of the verified, those that were not what was written. They left the index.",
        "Any: a worker writes where it should not; set `verify_rate` to 1 and see `page_corrupt`.",
        STORE.each(lambda view: view.stats.counters.corrupt_page_count),
    ),
    counter(
        "kvstore_removed_pages_total",
        "Pages that left the index for good and not for want of room: `removed` by an operator, "
        "`corrupt` and what continued those, with an extent that was `retired`, with a "
        "`namespace_deleted`.",
        "`corrupt`: see `kvstore_corrupt_pages_total`. `retired` again and again: tenants take "
        "memory from each other; limits.md.",
        REMOVALS.each(float),
    ),
    gauge(
        "kvstore_detached_pages",
        "Pages that left the index and are still held.",
        "Stays up: who holds them does not let go; `kvstore-ctl leases`.",
        STORE.each(lambda view: view.stats.detached_page_count),
    ),
    gauge(
        "kvstore_index_nodes",
        "Nodes of all namespaces' trees.",
        "Grows much faster than cached pages: prompts part after few pages; index-at-scale.md.",
        STORE.each(lambda view: sum(each.node_count for each in view.stats.namespaces)),
    ),
)
OF_SLOTS: Final = (
    gauge(
        "kvstore_slots",
        "Slots by state: free, reserved, cached, detached, moving or quarantined.",
        "`quarantined` stays up: a worker stopped without dying; `kvstore-ctl leases`. No `free` "
        "and few `cached` in tier 1: all is reserved or held.",
        SLOTS.each(lambda slots: slots[0]),
    ),
    gauge(
        "kvstore_slot_bytes",
        "Their bytes.",
        "One tenant's are most of a tier that others want: its share; limits.md.",
        SLOTS.each(lambda slots: slots[0] * slots[1]),
    ),
    gauge(
        "kvstore_tier_bytes",
        "Bytes that a memory tier may take.",
        "Never by itself: it is the setting.",
        TIERS.each(float),
    ),
    gauge(
        "kvstore_extents",
        "Extents: `lasting`, or `retiring`, which are given back once nobody maps them.",
        "`retiring` stays up: a worker keeps a mapping; `extent_still_mapped` in the log.",
        ARENAS.split(
            "state",
            lasting=lambda arena: arena.extent_count - arena.retiring_extent_count,
            retiring=lambda arena: arena.retiring_extent_count,
        ),
    ),
)
OF_HOLDS: Final = (
    gauge(
        "kvstore_leases",
        "Leases by the name that their worker gave: `active`, or `expired`, which may only let go.",
        "`expired` stays up: a worker hangs or was stopped, and what it reserved is in quarantine.",
        LEASES.split(
            "state", active=lambda lease: not lease.expired, expired=lambda lease: lease.expired
        ),
    ),
    gauge(
        "kvstore_attached_processes",
        "Processes attached under those leases.",
        "Fewer than ranks: one died, or cannot attach; `doctor`.",
        LEASES.each(lambda lease: len(lease.processes)),
    ),
    gauge(
        "kvstore_pins",
        "Pins and source pins.",
        "Only grows: a worker leaks pins; `kvstore-ctl leases LEASE` shows them by age.",
        LEASES.each(lambda lease: lease.pin_count),
    ),
    gauge(
        "kvstore_pinned_pages",
        "Pages that those pins name; a page is counted for each pin.",
        "Nearly all that is cached: running requests need most of the pool; sizing.md.",
        LEASES.each(lambda lease: lease.pinned_page_count),
    ),
    gauge(
        "kvstore_reservations",
        "Reservations.",
        "Only grows: as with pins.",
        LEASES.each(lambda lease: lease.reservation_count),
    ),
    gauge(
        "kvstore_held_slots",
        "Slots reserved and not published: `reserved`, or `quarantined` under an expired lease.",
        "`quarantined`: end that worker's processes, and its slots return.",
        LEASES.split(
            "state",
            reserved=lambda lease: lease.reserved_slot_count,
            quarantined=lambda lease: lease.quarantined_slot_count,
        ),
    ),
    gauge(
        "kvstore_named_pins",
        "Named pins of operators.",
        "More than anybody remembers: `kvstore-ctl pins`, and give them a time to live.",
        TENANTS.each(lambda tenant: tenant.named_pin_count),
    ),
    gauge(
        "kvstore_in_flight_prefills",
        "Reservations whose prompt others know to be under way.",
        "Stays up without inserts: who computes it hangs; others go on after `yield_idle`.",
        STORE.each(lambda view: view.stats.in_flight_count),
    ),
    gauge(
        "kvstore_oldest_hold_seconds",
        "Age of the oldest pin or reservation; 0 without any.",
        "Longer than any request: a leak, or a worker that hangs; `kvstore-ctl leases`.",
        STORE.each(
            lambda view: max(
                (each.oldest_hold_age or 0.0 for each in view.stats.leases), default=0.0
            )
        ),
    ),
    gauge(
        "kvstore_oldest_quarantine_seconds",
        "Time since the first lease expired that still has slots in quarantine; 0 without any.",
        "Minutes: end the worker's processes; failures.md.",
        STORE.each(lambda view: view.stats.oldest_quarantine_age or 0.0),
    ),
)
OF_CALLS: Final = (
    histogram(
        "kvstore_call_duration_seconds",
        "Calls as the server saw them, from their request to their answer: over `grpc`, or over a "
        "`lane` of the attach socket; outcome `OK` or the error's reason. Without streams.",
        "p99 grows: see `kvstore_mutex_wait_seconds`, the machine's load, and tier 3's loads. "
        "The request path over `grpc`: workers have no lanes; hot-lane.md.",
        CALLS.each(lambda counts: counts),
    ),
    counter(
        "kvstore_requests_total",
        "Calls of a tenant, refused ones too.",
        "One tenant's are most: its quota of requests; limits.md.",
        REQUESTS.each(lambda requests: requests.request_count),
    ),
    counter(
        "kvstore_refused_requests_total",
        "Of these, refused for the tenant's rate or its calls under way.",
        "Grows: the tenant asks more than its quota, and has misses for it.",
        REQUESTS.each(lambda requests: requests.refused_count),
    ),
)
OF_TIERS: Final = (
    counter(
        "kvstore_moved_pages_total",
        "Pages copied from one memory tier to another, by the tiers' numbers.",
        "From 1 to 2 many times those from 2 to 1: `--tier2-write through-selective`; tiers.md.",
        MOVES.each(lambda counts: counts.pages),
    ),
    counter(
        "kvstore_moved_bytes_total",
        "Their bytes. Over the seconds: the copier's bandwidth.",
        "Bandwidth far below the device's: see what else uses the bus or the memory.",
        MOVES.each(lambda counts: counts.bytes),
    ),
    counter(
        "kvstore_move_seconds_total",
        "Seconds that copies were under way.",
        "Grows by nearly a second a second: the copier is busy all the time; tiers.md.",
        MOVES.each(lambda counts: counts.seconds),
    ),
    counter(
        "kvstore_failed_moves_total",
        "Pages whose copy failed, or whose extent was given back meanwhile.",
        "Grows: `move_failed` in the log says what the device said.",
        MOVES.each(lambda counts: counts.failed_pages),
    ),
    counter(
        "kvstore_loaded_pages_total",
        "Pages brought from tier 3 for a match.",
        "Zero with a tier 3 that has pages: loads are declined, or nobody asks for them again.",
        STORE.each(lambda view: view.stats.counters.loaded_page_count),
    ),
    gauge(
        "kvstore_tier3_up",
        "1 while tier 3 takes and gives pages, 0 when its disk failed. Of tier 3 nothing is shown "
        "where there is none.",
        "0: `slab_failed` or `tier3_removal_failed` in the log; see the disk, then restart.",
        DISK.each(lambda tier3: tier3.disk.state is TierState.OPEN),
    ),
    gauge(
        "kvstore_tier3_pages",
        "Pages in tier 3.",
        "At the slots, with evictions: it is full; that is its purpose.",
        DISK.each(lambda tier3: tier3.disk.page_count),
    ),
    gauge(
        "kvstore_tier3_slots",
        "Room for pages of the sizes that it has met.",
        "Smaller than the memory tiers: it keeps little beyond them.",
        DISK.each(lambda tier3: tier3.disk.slot_count),
    ),
    gauge(
        "kvstore_tier3_read_bytes_per_second",
        "Recent bandwidth of loads, in bytes a second; 0 before the first.",
        "Falls: other programs use the disk, or it wears.",
        DISK.each(lambda tier3: tier3.bandwidth),
    ),
    counter(
        "kvstore_tier3_declined_loads_total",
        "Loads not begun since computing was sooner done.",
        "Most of them: the disk is slower than prefill; a faster one, or none.",
        DISK.each(lambda tier3: tier3.declined_count),
    ),
    counter(
        "kvstore_tier3_written_pages_total",
        "Pages written.",
        "Many times the loaded: `--tier3-write second-touch`.",
        DISK.each(lambda tier3: tier3.disk.counters.written_pages),
    ),
    counter(
        "kvstore_tier3_written_bytes_total",
        "Their bytes.",
        "More a day than the drive is rated for: `--tier3-write second-touch`.",
        DISK.each(lambda tier3: tier3.disk.counters.written_bytes),
    ),
    counter(
        "kvstore_tier3_read_pages_total",
        "Pages read whole.",
        "More than the loaded: loads that nobody waited for to the end.",
        DISK.each(lambda tier3: tier3.disk.counters.read_pages),
    ),
    counter(
        "kvstore_tier3_read_bytes_total",
        "Their bytes.",
        "At the drive's limit: loads stand in line.",
        DISK.each(lambda tier3: tier3.disk.counters.read_bytes),
    ),
    counter(
        "kvstore_tier3_refused_writes_total",
        "Writes refused since too much was waiting.",
        "Grows: the disk cannot keep up with what is inserted.",
        DISK.each(lambda tier3: tier3.disk.counters.refused_writes),
    ),
    counter(
        "kvstore_tier3_bad_pages_total",
        "Pages that were not what was written (`corrupt`), that the disk did not give "
        "(`unreadable`), or whose header was not whole at the start (`torn`).",
        "`corrupt` or `unreadable` grow: replace the disk. `torn`, after a crash: some are normal.",
        DISK.split(
            "kind",
            corrupt=lambda tier3: tier3.disk.counters.corrupt_pages,
            unreadable=lambda tier3: tier3.disk.counters.unreadable_pages,
            torn=lambda tier3: tier3.disk.counters.torn_slots,
        ),
    ),
    counter(
        "kvstore_tier3_gone_pages_total",
        "Pages that left tier 3: for want of room (`evicted`), or by a removal (`removed`).",
        "`evicted` nearly as fast as written: a larger file; sizing.md.",
        DISK.split(
            "reason",
            evicted=lambda tier3: tier3.disk.counters.evicted_pages,
            removed=lambda tier3: tier3.disk.counters.removed_pages,
        ),
    ),
    counter(
        "kvstore_tier3_recovered_pages_total",
        "Pages found at the start.",
        "Zero after a restart: another file, or it could not be read.",
        DISK.each(lambda tier3: tier3.disk.counters.recovered_pages),
    ),
)
OF_SUCCESSION: Final = (
    gauge(
        "kvstore_holder_behind",
        "Descriptors that the holder should have and does not.",
        "Above 0: the holder is lost or refuses; killing the server loses the cache; holder.md.",
        SUCCESSION.each(lambda use: use.behind),
    ),
    gauge(
        "kvstore_journal_used_bytes",
        "Bytes of the journal in use.",
        "Near `kvstore_journal_bytes`: a larger `journal_bytes` at the next clean start.",
        SUCCESSION.each(lambda use: use.journal_used_bytes),
    ),
    gauge(
        "kvstore_journal_bytes",
        "Bytes of the journal that records may fill.",
        "Nothing by itself, and less than the setting `journal_bytes` (11.2 MiB of 16): "
        "`kvstore_journal_used_bytes` has to stay below it.",
        SUCCESSION.each(lambda use: use.journal_capacity_bytes),
    ),
    gauge(
        "kvstore_journal_given_up",
        "1 once the journal ran full or was damaged, or if there was no memory for it.",
        "1: the next server starts clean; `journal_given_up` in the log says why.",
        SUCCESSION.each(lambda use: bool(use.failure)),
    ),
    gauge(
        "kvstore_recovered_pages",
        "Pages that this server found in the memory of the one before.",
        "Zero after a restart: `clean_start` in the log says why.",
        SUCCESSION.each(lambda use: use.recovered_page_count),
    ),
)
OF_SERVER: Final = (
    gauge(
        "kvstore_build_info",
        "1, with what the server is.",
        "Servers of one fleet differ: an upgrade is under way, or was forgotten.",
        BUILD.each(float),
    ),
    gauge(
        "kvstore_ready",
        "1 while the server takes new work, as health says it.",
        "0: it starts, drains, or a thread of it is silent; `health_lost` in the log.",
        STORE.each(lambda view: view.ready),
    ),
    gauge(
        "kvstore_thread_silence_seconds",
        "Seconds since a thread of the server last got round.",
        "More than 3: it hangs, and the server is not ready; the log has its stack.",
        THREADS.each(lambda thread: thread.silence),
    ),
    counter(
        "kvstore_thread_failures_total",
        "Exceptions that a thread outlived.",
        "Any: a bug; the log has its traceback.",
        THREADS.each(lambda thread: thread.failure_count),
    ),
    histogram(
        "kvstore_mutex_wait_seconds",
        "How long the store's mutex took to be had, sampled twice a second: what a call waits for.",
        "p99 above a millisecond: too many calls for one store, or one that takes long, such as "
        "statistics of thousands of leases.",
        STORE.each(lambda view: view.mutex_waits),
    ),
    gauge(
        "kvstore_snapshot_seconds",
        "How long the store was asked for what this scrape shows; calls wait for a part of it.",
        "Above 0.1: many leases, pins or namespaces; scrape less often.",
        STORE.each(lambda view: view.seconds),
    ),
    counter(
        "kvstore_events_total",
        "Events that watchers are told of, or would be.",
        "Nothing by itself: it is what a watcher has to keep up with; events.md.",
        STORE.each(lambda view: view.events.event_count),
    ),
    counter(
        "kvstore_events_lost_total",
        "Events that a watcher was not told, since its client takes them too slowly: of each "
        "watcher.",
        "Grows: what that watcher counts is wrong from then on; let it do less with each; "
        "events.md.",
        STORE.each(lambda view: view.events.lost_count),
    ),
    gauge(
        "kvstore_event_watchers",
        "Watchers of events.",
        "Only grows: somebody watches and does not end; limits.md bounds them.",
        STORE.each(lambda view: view.events.watcher_count),
    ),
)

OF_KV_EVENTS: Final = (
    counter(
        "kvstore_kv_event_batches_total",
        "Batches of KV events that were published, those without events among them. Without "
        "`kv_events` these metrics are absent.",
        "Stands still: the thread failed; the log has `kv_events_failed`.",
        KV_EVENTS.each(lambda uses: sum(each.batch_count for each in uses)),
    ),
    counter(
        "kvstore_kv_event_copies_total",
        "Copies of pages that were published as stored, those of snapshots among them, or as "
        "removed.",
        "Nothing by itself: it is what a router has to keep up with.",
        KV_EVENTS.split(
            "change",
            stored=lambda uses: sum(each.stored_block_count for each in uses),
            removed=lambda uses: sum(each.removed_block_count for each in uses),
        ),
    ),
    counter(
        "kvstore_kv_event_lost_changes_total",
        "Changes that came faster than they were published. A snapshot took their place.",
        "Grows: the server has too little processor time.",
        KV_EVENTS.each(lambda uses: sum(each.lost_change_count for each in uses)),
    ),
    counter(
        "kvstore_kv_event_snapshots_total",
        "Snapshots: one at the start, and one for each loss that a replay cannot repair.",
        "Grows steadily: a router loses batches and asks too late; see its log.",
        KV_EVENTS.each(lambda uses: sum(each.snapshot_count for each in uses)),
    ),
    counter(
        "kvstore_kv_event_replays_total",
        "Requests of consumers for batches that they lost.",
        "Grows steadily: a router or its network is too slow.",
        KV_EVENTS.each(lambda uses: sum(each.replay_count for each in uses)),
    ),
    gauge(
        "kvstore_kv_event_last_batch_number",
        "The largest number of a batch, of all tenants.",
        "Larger than the last number of a router that has heard nothing for a second: it is cut "
        "off.",
        KV_EVENTS.each(lambda uses: max(each.last_number for each in uses)),
    ),
)

# In the order of the output.
CATALOGUE: Final = {
    "Lookups and pages by tenant and namespace": OF_LOOKUPS,
    "Pages": OF_PAGES,
    "Slots": OF_SLOTS,
    "Leases and holds": OF_HOLDS,
    "Calls": OF_CALLS,
    "Copies and tier 3": OF_TIERS,
    "The remote tier": OF_REMOTE,
    "Memory that outlives the server": OF_SUCCESSION,
    "KV events": OF_KV_EVENTS,
    "The server": OF_SERVER,
}
METRICS: Final = tuple(metric for area in CATALOGUE.values() for metric in area)
