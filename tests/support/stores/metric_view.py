"""A view of a store as tests make it, and what a scrape of it says."""

from dataclasses import replace

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from kvstore.core.values.requests import Identity
from kvstore.metrics.collector import StoreCollector
from kvstore.metrics.definitions import METRICS
from kvstore.metrics.view import ThreadView, View
from kvstore.service.call_durations import DurationCounts
from kvstore.service.store import KVStore

# Of each metric, by the name that a parser knows it by.
ORDER = {metric.name.removesuffix("_total"): metric.series.labels for metric in METRICS}


def view_of(store: KVStore) -> View:
    """Returns a view of a store without a server around it."""
    return View(
        stats=store.stats(Identity("", admin=True)),
        requests=store.traffic.all_requests(),
        tier_bytes=store.tier_bytes,
        moves=store.mover.ledger.read(),
        tier3=store.tier3.use(),
        calls={
            (lane, *key): counts
            for lane, times in store.call_times.items()
            for key, counts in times.read().items()
        },
        succession=store.succession.use(),
        thrash=store.thrash.ratio,
        events=store.events.use(),
        kv_events=store.kv_event_uses(),
        threads={"reaper": ThreadView(0.5, 2)},
        ready=True,
        mutex_waits=DurationCounts(),
        seconds=0.001,
        version="1.2.3",
        prefix_cache_backend="radix",
    )


class Scraped:
    """A collector over views that a test sets, scraped as text."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._registry = CollectorRegistry()
        self._registry.register(StoreCollector(lambda: self.view))

    def text(self) -> str:
        """Returns Prometheus' text."""
        return generate_latest(self._registry).decode()

    def openmetrics(self) -> str:
        """Returns OpenMetrics."""
        return generate_openmetrics(self._registry).decode()

    def samples(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Returns the values of each sample's name, by its labels' values in our order."""
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self.text()):
            for sample in family.samples:
                line = found.setdefault(sample.name, {})
                order = (*ORDER[family.name], "le")
                labels = tuple(sample.labels[each] for each in order if each in sample.labels)
                assert len(labels) == len(sample.labels)
                assert labels not in line, f"{sample.name}{labels} is there twice"
                line[labels] = sample.value
        return found


def without_namespaces(view: View) -> View:
    """Returns a view of a store whose namespaces were all deleted."""
    return view._replace(stats=replace(view.stats, namespaces=()))
