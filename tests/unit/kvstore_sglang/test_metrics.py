"""The linker's counts for Prometheus and for the log."""

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client import REGISTRY

from kvstore_client.engines.counters import COUNTED, note_attached
from kvstore_sglang.metrics import LOG_SECONDS, METRIC_SECONDS, CountReport, LinkerMetrics

LABELS = {"model_name": "tiny", "tp_rank": "0"}


@pytest.fixture
def metrics() -> Iterator[LinkerMetrics]:
    """Provides metrics in Prometheus's registry, which has none of them afterwards."""
    before = set(REGISTRY._collector_to_names)
    yield LinkerMetrics(LABELS)
    for each in set(REGISTRY._collector_to_names) - before:
        REGISTRY.unregister(each)


@dataclass
class Observer:
    """Metrics that keep what they are given."""

    observed: list[dict[str, int]] = field(default_factory=list)

    def observe(self, counts: dict[str, int]) -> None:
        """Keeps counts."""
        self.observed.append(counts)


def value(name: str, **labels: str) -> float | None:
    """Returns a metric's value as Prometheus reads it."""
    return REGISTRY.get_sample_value(name, {**LABELS, **labels})


def test_every_metric_is_there_from_the_start(metrics: LinkerMetrics) -> None:
    """A dashboard shows zero, not a gap."""
    del metrics
    for each in COUNTED:
        found = REGISTRY.get_sample_value(
            f"{each.metric}_total",
            LABELS | ({_label(each.metric): each.label} if each.label else {}),
        )
        assert found == 0
    assert value("kvstore_attached") == 0


def _label(metric: str) -> str:
    return "outcome" if metric == "kvstore_lookups" else "tier"


def test_hits_are_shown_by_tier_and_misses_by_reason(metrics: LinkerMetrics) -> None:
    """Times are seconds, and the store's state is the latest."""
    metrics.observe(
        {"loaded_tokens_1": 32, "loaded_tokens_3": 16, "lookups_full": 2, "lookups_timeout": 1}
        | {"load_microseconds": 500_000, "attached": 1}
    )
    assert value("kvstore_loaded_tokens_total", tier="1") == 32
    assert value("kvstore_loaded_tokens_total", tier="3") == 16
    assert value("kvstore_lookups_total", outcome="full") == 2
    assert value("kvstore_lookups_total", outcome="timeout") == 1
    assert value("kvstore_load_seconds_total") == 0.5
    assert value("kvstore_attached") == 1
    metrics.observe({"not_attached": 1})
    assert value("kvstore_attached") == 0


def test_counts_are_taken_out_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    """Prometheus gets each count once, and the log has a line of ten seconds."""
    caplog.set_level(logging.INFO, "kvstore_sglang")
    now = [0.0]
    observer: Any = Observer()
    counts: Counter[str] = Counter()
    report = CountReport(counts, observer, lambda: now[0])
    counts["lookups_miss"] += 1
    note_attached(counts, attached=True)
    report.tick()
    assert observer.observed == []
    now[0] += METRIC_SECONDS
    report.tick()
    assert observer.observed == [{"lookups_miss": 1, "attached": 1}]
    assert not counts
    counts["lookups_full"] += 2
    now[0] += LOG_SECONDS
    report.tick()
    [record] = caplog.records
    assert record.getMessage() == "kvstore_counts"
    assert record.counts == "kvstore lookups 3, full 2, miss 1, attached 1"  # type: ignore[attr-defined]
    now[0] += LOG_SECONDS
    report.tick()
    assert len(caplog.records) == 1


def test_without_metrics_counts_are_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    """SGLang serves metrics only if it is asked to."""
    caplog.set_level(logging.INFO, "kvstore_sglang")
    now = [0.0]
    report = CountReport(Counter(lookups_miss=1), None, lambda: now[0])
    now[0] += LOG_SECONDS
    report.tick()
    assert len(caplog.records) == 1
