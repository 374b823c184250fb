"""Metrics of the server: its readiness, its threads and its mutex."""

from typing import Final

from kvstore.metrics.metric import Sheet, counter, gauge, histogram
from kvstore.metrics.view import View

INFO: Final = gauge(
    "kvstore_build_info",
    "version prefix_cache_backend",
    "1, with what the server is.",
    "Servers of one fleet differ: an upgrade is under way, or was forgotten.",
)
READY: Final = gauge(
    "kvstore_ready",
    "",
    "1 while the server takes new work, as health says it.",
    "0: it starts, drains, or a thread of it is silent; `health_lost` in the log.",
)
SILENCE: Final = gauge(
    "kvstore_thread_silence_seconds",
    "thread",
    "Seconds since a thread of the server last got round.",
    "More than 3: it hangs, and the server is not ready; the log has its stack.",
)
FAILURES: Final = counter(
    "kvstore_thread_failures_total",
    "thread",
    "Exceptions that a thread outlived.",
    "Any: a bug; the log has its traceback.",
)
MUTEX: Final = histogram(
    "kvstore_mutex_wait_seconds",
    "",
    "How long the store's mutex took to be had, sampled twice a second: what a call waits for.",
    "p99 above a millisecond: too many calls for one store, or one that takes long, such as "
    "statistics of thousands of leases.",
)
SNAPSHOT: Final = gauge(
    "kvstore_snapshot_seconds",
    "",
    "How long the store was asked for what this scrape shows; calls wait for a part of it.",
    "Above 0.1: many leases, pins or namespaces; scrape less often.",
)
EVENTS: Final = counter(
    "kvstore_events_total",
    "",
    "Events that watchers are told of, or would be.",
    "Nothing by itself: it is what a watcher has to keep up with; events.md.",
)
LOST: Final = counter(
    "kvstore_events_lost_total",
    "",
    "Events that a watcher was not told, since its client takes them too slowly: of each watcher.",
    "Grows: what that watcher counts is wrong from then on; let it do less with each; events.md.",
)
WATCHERS: Final = gauge(
    "kvstore_event_watchers",
    "",
    "Watchers of events.",
    "Only grows: somebody watches and does not end; limits.md bounds them.",
)
METRICS: Final = (INFO, READY, SILENCE, FAILURES, MUTEX, SNAPSHOT, EVENTS, LOST, WATCHERS)


def write(view: View, sheet: Sheet) -> None:
    """Adds this module's metrics to the sheet."""
    sheet.add(INFO, 1, view.version, view.prefix_cache_backend)
    sheet.add(READY, view.ready)
    for name, thread in view.threads.items():
        sheet.add(SILENCE, thread.silence, name)
        sheet.add(FAILURES, thread.failure_count, name)
    sheet.add_durations(MUTEX, view.mutex_waits)
    sheet.add(SNAPSHOT, view.seconds)
    sheet.add(EVENTS, view.events.event_count)
    sheet.add(LOST, view.events.lost_count)
    sheet.add(WATCHERS, view.events.watcher_count)
