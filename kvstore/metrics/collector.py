"""A store's metrics, as prometheus_client collects them."""

from collections.abc import Iterator
from threading import Lock
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from kvstore.metrics import calls, holds, lookups, moves, pages, server, slots
from kvstore.metrics.metric import Kind, Labels, Metric, Sheet
from kvstore.metrics.names import PassingNames, TenantNames
from kvstore.metrics.view import View, Views
from kvstore.service.timing import BOUNDS, DurationCounts

# By area, in the order of the output.
CATALOGUE: Final[dict[str, tuple[Metric, ...]]] = {
    "Lookups and pages by tenant and namespace": lookups.METRICS,
    "Pages": pages.METRICS,
    "Slots": slots.METRICS,
    "Leases and holds": holds.METRICS,
    "Calls": calls.METRICS,
    "Copies and tier 3": moves.METRICS,
    "The server": server.METRICS,
}
METRICS: Final = tuple(metric for area in CATALOGUE.values() for metric in area)


class StoreCollector(Collector):
    """Collects the metrics of ``CATALOGUE`` from one view at a time. Thread-safe."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._mutex = Lock()
        self._names = TenantNames()
        self._owners = PassingNames()
        self._lookups = lookups.Lookups(self._names)

    def collect(self) -> Iterator[Family]:
        """Yields every metric that has a value."""
        view = self._views.now()
        with self._mutex:
            sheet = self._sheet(view)
        for metric in METRICS:
            if metric in sheet.values:
                yield _numbers(metric, sheet.values[metric])
            elif metric in sheet.durations:
                yield _durations(metric, sheet.durations[metric])

    def _sheet(self, view: View) -> Sheet:
        sheet = Sheet()
        self._lookups.write(view, sheet)
        pages.write(view, sheet)
        slots.write(view, sheet, self._names)
        holds.write(view, sheet, self._names, self._owners)
        calls.write(view, sheet, self._names)
        moves.write(view, sheet)
        server.write(view, sheet)
        return sheet


def _numbers(metric: Metric, values: dict[Labels, float]) -> Family:
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = make(metric.name, metric.meaning, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _durations(metric: Metric, values: dict[Labels, DurationCounts]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
    bounds = [*map(str, BOUNDS), "+Inf"]
    for labels, counts in values.items():
        buckets = list(zip(bounds, counts.cumulative(), strict=True))
        family.add_metric(labels, buckets, counts.seconds)
    return family
