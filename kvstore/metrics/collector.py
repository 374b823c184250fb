"""A store's metrics, as prometheus_client collects them."""

import operator
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from kvstore import background
from kvstore.core.stats import NamespaceStats
from kvstore.core.values.counters import Counters
from kvstore.metrics.definitions import METRICS
from kvstore.metrics.metric import Kind, Metric
from kvstore.metrics.names import PassingNames, TenantNames
from kvstore.metrics.scrape import Labels, Scrape
from kvstore.metrics.view import View
from kvstore.service.call_durations import BOUNDS, DurationCounts

BUCKETS = (*map(str, BOUNDS), "+Inf")


class StoreCollector(Collector):
    """Collects the metrics of ``METRICS`` from one view at a time. Thread-safe."""

    def __init__(self, view: Callable[[], View]) -> None:
        self._view = view
        self._mutex = Lock()
        self._names = TenantNames()
        self._owners = PassingNames()
        self._last: dict[bytes, NamespaceStats] = {}
        # Sums of deleted namespaces by their labels, and each tenant's part of them.
        self._gone: dict[Labels, Counters] = {}
        self._shown: dict[str, Counters] = {}

    def collect(self) -> Iterator[Family]:
        """Yields every metric that has a value."""
        view = self._view()
        with self._mutex:
            scrape = self._scrape(view)
            families = []
            for metric in METRICS:
                families.append(_family(metric, scrape))
                background.give_way()
        yield from (family for family in families if family.samples)

    def _scrape(self, view: View) -> Scrape:
        stats = view.stats
        owned = [(self._names.tenant(each.tenant), each) for each in stats.leases]
        self._owners.show((tenant, lease.display_name) for tenant, lease in owned)
        tenants = {
            *(each.tenant for each in stats.arenas),
            *(each.tenant for each in stats.tenants),
            *view.requests,
        }
        return Scrape(
            view,
            self._counters(view),
            [(self._labels(each), each.cached_page_count) for each in stats.namespaces],
            [(self._owners.of(tenant, each.display_name), each) for tenant, each in owned],
            {tenant: self._names.tenant(tenant) for tenant in tenants},
        )

    def _counters(self, view: View) -> list[tuple[Labels, Counters]]:
        """Returns the counters by labels. Deleted namespaces stay in them."""
        current = {each.namespace_id: each for each in view.stats.namespaces}
        for namespace_id, last in self._last.items():
            if namespace_id not in current:
                self._gone.setdefault(self._labels(last), Counters()).add(last.counters)
                self._shown.setdefault(last.tenant, Counters()).add(last.counters)
        self._last = current
        found = list(self._gone.items())
        # Lookups that a namespace counted after its last view; their labels would be a guess.
        for tenant, counters in view.stats.deleted.items():
            unseen = counters.less(self._shown.get(tenant, Counters()))
            found.append((self._names.others(tenant), unseen))
        found += [(self._labels(each), each.counters) for each in current.values()]
        return found

    def _labels(self, namespace: NamespaceStats) -> Labels:
        name = namespace.identity.display_name or namespace.namespace_id.hex()[:8]
        return self._names.namespace(namespace.tenant, name)


def _family(metric: Metric, scrape: Scrape) -> Family:
    """Returns a metric's values; the values of equal labels are summed."""
    durations = metric.kind is Kind.HISTOGRAM
    plus: Callable[[Any, Any], Any] = DurationCounts.plus if durations else operator.add
    found: dict[Labels, Any] = {}
    for labels, value in background.gently(metric.series.rows(scrape)):
        found[labels] = plus(found[labels], value) if labels in found else value
    if durations:
        histogram = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.series.labels)
        for labels, value in found.items():
            buckets = list(zip(BUCKETS, value.cumulative(), strict=True))
            histogram.add_metric(labels, buckets, value.seconds)
        return histogram
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    numbers = make(metric.name, metric.meaning, labels=metric.series.labels)
    for labels, value in found.items():
        numbers.add_metric(labels, value)
    return numbers
