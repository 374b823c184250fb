"""Counts through vLLM's own hooks."""

from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as PrometheusCounter
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from kvstore_client.engines.counters import ATTACHED, GAUGES, METRICS
from kvstore_vllm.connector import KvstoreConnector
from kvstore_vllm.connector_stats import ConnectorPromMetrics, ConnectorStats
from kvstore_vllm.offload.offload_connector import KvstoreOffloadingConnector


def test_what_was_counted_is_taken_once() -> None:
    """A count is told once, and goes on from nothing."""
    counts: Counter[str] = Counter(load_bytes=5, lookups_full=1)
    taken = ConnectorStats.taken(counts)
    assert taken is not None
    assert taken.to_dict() == {"load_bytes": 5, "lookups_full": 1}
    assert ConnectorStats.taken(counts) is None
    counts["load_bytes"] += 2
    later = ConnectorStats.taken(counts)
    assert later is not None
    total = taken.aggregate(later)
    assert total.to_dict()["load_bytes"] == 7
    assert not total.is_empty()
    assert total.reduce()["kvstore lookups"] == 1
    total.reset()
    assert total.is_empty()


@pytest.mark.parametrize("connector", [KvstoreConnector, KvstoreOffloadingConnector])
def test_vllm_finds_the_connector_by_its_name_alone(connector: type) -> None:
    """As MultiConnector does, for the counts of each of its connectors."""
    found = KVConnectorFactory.get_connector_class_by_name(connector.__name__)
    assert found is connector


def test_prometheus_has_every_metric_for_each_engine() -> None:
    """From the start as zero; then what each engine counted, times in seconds."""
    registry = CollectorRegistry()

    def counter(name: str, meaning: str, labels: list[str]) -> PrometheusCounter:
        return PrometheusCounter(name, meaning, labels, registry=registry)

    config = SimpleNamespace(kv_transfer_config=None)
    types = {
        PrometheusCounter: counter,
        Gauge: partial(Gauge, registry=registry),
        Histogram: Histogram,
    }
    metrics = ConnectorPromMetrics(config, types, ["engine"], {0: ["0"], 1: ["1"]})

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"{name}_total", labels)

    names = {metric.name for metric in registry.collect()}
    assert names == {*METRICS, *GAUGES}
    assert value("kvstore_lookups", engine="1", outcome="timeout") == 0
    metrics.observe({"lookups_full": 3, "load_microseconds": 1_500_000, "saves_failed": 1}, 1)
    metrics.observe({"lookups_full": 1, "inserts_failed": 1}, 1)
    assert value("kvstore_lookups", engine="1", outcome="full") == 4
    assert value("kvstore_lookups", engine="0", outcome="full") == 0
    assert value("kvstore_load_seconds", engine="1") == 1.5
    assert value("kvstore_failed_saves", engine="1") == 2


def test_an_engine_that_has_the_store_says_so() -> None:
    """From when it is told, for each engine, and as long as nothing else is."""
    registry = CollectorRegistry()
    types = {
        each: partial(each, registry=registry) for each in (PrometheusCounter, Gauge, Histogram)
    }
    config = SimpleNamespace(kv_transfer_config=None)
    metrics = ConnectorPromMetrics(config, types, ["engine"], {0: ["0"], 1: ["1"]})

    def attached() -> list[float | None]:
        return [registry.get_sample_value(ATTACHED, {"engine": each}) for each in "01"]

    assert attached() == [0, 0]
    metrics.observe({"attached": 1, "lookups_full": 1}, 1)
    metrics.observe({"lookups_full": 1}, 1)
    assert attached() == [0, 1]
    metrics.observe({"not_attached": 1}, 1)
    assert attached() == [0, 0]
