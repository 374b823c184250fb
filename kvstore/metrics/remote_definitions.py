"""The definitions of the remote tier's metrics."""

from typing import Final

from kvstore.metrics.metric import counter, gauge
from kvstore.metrics.scrape import (
    REMOTE,
    REMOTE_LOOKS,
    REMOTE_REFUSALS,
    REMOTE_REJECTIONS,
    REMOTE_STORE,
)
from kvstore.service.page_io.slow_tier import TierState

OF_REMOTE: Final = (
    gauge(
        "kvstore_remote_up",
        "1 while the store reads and writes pages in the engine, 0 while the engine is away or has "
        "not confirmed a removal. Without a remote tier these metrics are absent.",
        "0: `kvstore-ctl doctor` says why; requests compute meanwhile.",
        REMOTE_STORE.each(lambda use: use.tier.state is TierState.OPEN),
    ),
    counter(
        "kvstore_remote_looks_total",
        "Lookups of a prompt's pages: all found (`hit`), some (`partial`), none (`miss`), not "
        "asked (`skipped`), or no answer in time (`failed`). `skipped`: the engine is away, or a "
        "miss is likely.",
        "`failed` grows: the engine is slow; `--remote-timeout`. `miss` alone: other keys or "
        "producers on the hosts, or no host writes.",
        REMOTE_LOOKS.each(float),
    ),
    counter(
        "kvstore_remote_look_seconds_total",
        "Seconds of all lookups.",
        "More than a few milliseconds a lookup: the engine is far or busy.",
        REMOTE.each(lambda use: use.look_seconds),
    ),
    counter(
        "kvstore_remote_loads_total",
        "Loads for matches: begun (`loaded`), no longer waited for (`late`), or not worth their "
        "time (`declined`).",
        "Mostly `declined`: the engine is slower than prefill; sizing.md. `late`: it is slow now.",
        REMOTE_STORE.split(
            "outcome",
            loaded=lambda use: use.loads.load_count,
            late=lambda use: use.loads.late_count,
            declined=lambda use: use.loads.declined_count,
        ),
    ),
    counter(
        "kvstore_remote_saved_prefill_seconds_total",
        "Seconds in which callers would have computed the tokens that their matches loaded, each "
        "at its stated speed. The wait for the loads is in it.",
        "Grows slower than `kvstore_remote_read_seconds_total`: computing is as fast; sizing.md.",
        REMOTE_STORE.each(lambda use: use.loads.saved_prefill_seconds),
    ),
    gauge(
        "kvstore_remote_load_bytes_per_second",
        "Recent bandwidth of loads, in bytes a second; 0 before the first.",
        "Below the break-even of sizing.md: computing is faster.",
        REMOTE_STORE.each(lambda use: use.loads.bandwidth),
    ),
    counter(
        "kvstore_remote_read_pages_total",
        "Pages read and found correct.",
        "Does not grow although lookups hit: reads are too late; see their seconds.",
        REMOTE.each(lambda use: use.read_pages),
    ),
    counter(
        "kvstore_remote_read_bytes_total",
        "Bytes of the pages read.",
        "At the network's limit: loads wait for each other.",
        REMOTE.each(lambda use: use.read_bytes),
    ),
    counter(
        "kvstore_remote_read_seconds_total",
        "Seconds of all reads, including their time in the queue.",
        "Bytes over these are the bandwidth; below the break-even of sizing.md, compute instead.",
        REMOTE.each(lambda use: use.read_seconds),
    ),
    counter(
        "kvstore_remote_written_pages_total",
        "Pages written.",
        "Many times what all hosts read: `--remote-write second-touch`.",
        REMOTE.each(lambda use: use.written_pages),
    ),
    counter(
        "kvstore_remote_written_bytes_total",
        "Bytes of the pages written.",
        "More than the engine's memory in a day: pages are evicted before their second use.",
        REMOTE.each(lambda use: use.written_bytes),
    ),
    counter(
        "kvstore_remote_refused_pages_total",
        "Pages not written: no room in the `queue`, the engine is `away` or refused the value "
        "(`engine`), writes are `off`, the page waited too long (`old`), its namespace had a "
        "removal (`revision`), or its bytes changed (`changed`).",
        "`queue` or `old`: the engine cannot keep up. `engine`: it is full, or a replica. "
        "`changed`: a worker writes where it must not.",
        REMOTE_REFUSALS.each(float),
    ),
    counter(
        "kvstore_remote_rejected_pages_total",
        "Values that were not the page: of another version (`format`) or key (`secret`), changed "
        "or swapped (`seal`), or wrong before they were sealed (`checksum`).",
        "`secret`: hosts have other keys. `seal` or `checksum`: bad memory, or somebody writes to "
        "the engine.",
        REMOTE_REJECTIONS.each(float),
    ),
    counter(
        "kvstore_remote_refreshed_pin_pages_total",
        "Pages of named pins that the engine still had when the store asked for them, so that they "
        "do not expire. It asks for each about every ten minutes.",
        "Does not grow although there are named pins: the engine is away, or has none of them.",
        REMOTE_STORE.each(lambda use: use.pins.refreshed_pages),
    ),
    gauge(
        "kvstore_remote_absent_pin_pages",
        "Pages of named pins that the engine lacked at the latest question. The store writes them "
        "again.",
        "Above 0 for minutes: the engine evicts them, or this host writes nothing; "
        "`kvstore-ctl pins` says which.",
        REMOTE_STORE.each(lambda use: use.pins.absent_pages),
    ),
    counter(
        "kvstore_remote_away_total",
        "Times that the store stopped using the engine until it answered again.",
        "Grows: the engine or the network fails; the log's `remote_engine_away` says how.",
        REMOTE.each(lambda use: use.breaker_opened),
    ),
    gauge(
        "kvstore_remote_nodes",
        "Nodes of the engine: the primaries of a cluster, or 1.",
        "Other than the cluster has: this host does not see all of it.",
        REMOTE.each(lambda use: use.node_count),
    ),
    gauge(
        "kvstore_remote_nodes_away",
        "Nodes of the engine that do not answer. Their pages are misses; the others' are found.",
        "Above 0 for long: `kvstore-ctl remote` names them.",
        REMOTE.each(lambda use: len(use.nodes_away)),
    ),
    counter(
        "kvstore_remote_lost_revisions_total",
        "Revisions that the engine lost, or had an older value of.",
        "More than one an hour: the engine evicts them; `maxmemory-policy volatile-ttl`.",
        REMOTE.each(lambda use: use.revisions_lost),
    ),
    counter(
        "kvstore_remote_forged_revisions_total",
        "Revisions that were not made with the secret.",
        "Above 0: somebody writes to the engine, or two groups of hosts share one.",
        REMOTE.each(lambda use: use.revisions_forged),
    ),
    gauge(
        "kvstore_remote_pending_removals",
        "Namespaces with a removal that the engine has not confirmed.",
        "Above 0 for long: other hosts may still find removed pages; bring the engine back.",
        REMOTE.each(lambda use: use.removals_pending),
    ),
    gauge(
        "kvstore_remote_queued_bytes",
        "Bytes that wait to be written.",
        "High for long: the engine cannot keep up with what is inserted.",
        REMOTE.each(lambda use: use.queue_bytes),
    ),
    gauge(
        "kvstore_remote_clock_skew_seconds",
        "The engine's clock less this host's.",
        "Beyond 60: set the clocks by NTP; pages live for the wrong time only on S3.",
        REMOTE.each(lambda use: use.clock_skew),
    ),
    gauge(
        "kvstore_remote_writes_stopped",
        "1 if this host writes no more pages, since it found many corrupt ones.",
        "1: test the host's memory; then restart the server.",
        REMOTE.each(lambda use: use.writes_stopped),
    ),
)
