"""Metrics of calls: their duration, path, outcome and clients."""

from typing import Final

from kvstore.metrics.metric import Sheet, counter, histogram
from kvstore.metrics.names import TenantNames
from kvstore.metrics.view import View

CALLS: Final = histogram(
    "kvstore_call_duration_seconds",
    "lane method outcome",
    "Calls as the server saw them, from their request to their answer: over `grpc`, or over a "
    "`lane` of the attach socket; outcome `OK` or the error's reason. Without streams.",
    "p99 grows: see `kvstore_mutex_wait_seconds`, the machine's load, and tier 3's loads. "
    "The request path over `grpc`: workers have no lanes; hot-lane.md.",
)
REQUESTS: Final = counter(
    "kvstore_requests_total",
    "tenant",
    "Calls of a tenant, refused ones too.",
    "One tenant's are most: its quota of requests; limits.md.",
)
REFUSED: Final = counter(
    "kvstore_refused_requests_total",
    "tenant",
    "Of these, refused for the tenant's rate or its calls under way.",
    "Grows: the tenant asks more than its quota, and has misses for it.",
)
METRICS: Final = (CALLS, REQUESTS, REFUSED)


def write(view: View, sheet: Sheet, names: TenantNames) -> None:
    """Adds this module's metrics to the sheet."""
    for (lane, path, outcome), counts in view.calls.items():
        sheet.add_durations(CALLS, counts, lane, path.rpartition("/")[2], outcome)
    for tenant, requests in view.requests.items():
        name = names.tenant(tenant)
        sheet.add(REQUESTS, requests.request_count, name)
        sheet.add(REFUSED, requests.refused_count, name)
