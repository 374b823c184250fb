"""The counts that vLLM shows in its log and in its ``/metrics``."""

from collections import Counter
from typing import Any

from prometheus_client import REGISTRY, Gauge
from prometheus_client import Counter as PrometheusCounter
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from kvstore_client.engines.counters import (
    ATTACHED,
    COUNTED,
    GAUGES,
    IS_ATTACHED,
    IS_NOT_ATTACHED,
    METRICS,
    in_words,
    summed,
    take_counts,
)


class ConnectorStats(KVConnectorStats):
    """The counts of one interval: of a rank, of the scheduler, or summed up."""

    @classmethod
    def taken(cls, counts: "Counter[str]") -> "ConnectorStats | None":
        """Returns the counts and resets them; None if nothing was counted."""
        if not counts:
            return None
        return cls(data=take_counts(counts))

    def reset(self) -> None:
        """Forgets all counts."""
        self.data: dict[str, int] = {}

    def aggregate(self, other: KVConnectorStats) -> "ConnectorStats":
        """Adds the counts of another rank, or of a later step."""
        self.data = summed(self.data, other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        """Returns the values for vLLM's log line about an interval."""
        return in_words(self.data)

    def is_empty(self) -> bool:
        """Returns whether nothing was counted."""
        return not any(self.data.values())


class ConnectorPromMetrics(KVConnectorPromMetrics):
    """The metrics of one API server, for each of its engines."""

    def __init__(
        self,
        vllm_config: Any,  # noqa: ANN401  # a VllmConfig
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        forget_metrics()
        counter = metric_types[PrometheusCounter]
        metrics = {
            name: counter(name, meaning, [*labelnames, label] if label else labelnames)
            for name, (meaning, label) in METRICS.items()
        }
        # All of them exist from the start, with the value zero.
        self._counters = {
            (engine, each.key): metrics[each.metric].labels(
                *([*values, each.label] if each.label else values)
            )
            for engine, values in per_engine_labelvalues.items()
            for each in COUNTED
        }
        # Only one of several API servers receives a change, so the most recent value counts.
        attached = metric_types[Gauge](
            name=ATTACHED,
            documentation=GAUGES[ATTACHED],
            multiprocess_mode="mostrecent",
            labelnames=labelnames,
        )
        self._attached = {
            engine: attached.labels(*values) for engine, values in per_engine_labelvalues.items()
        }
        for each in self._attached.values():
            each.set(0)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Adds the counts of one engine, and notes whether it uses the store."""
        for each in COUNTED:
            if value := transfer_stats_data.get(each.key):
                self._counters[engine_idx, each.key].inc(value / each.scale)
        if transfer_stats_data.keys() & {IS_ATTACHED, IS_NOT_ATTACHED}:
            self._attached[engine_idx].set(int(IS_ATTACHED in transfer_stats_data))


def forget_metrics() -> None:
    """Unregisters these metrics, so that a second engine of a process can register them.

    vLLM does the same with its own metrics.
    """
    for collector in list(REGISTRY._collector_to_names):  # noqa: SLF001  # as vLLM looks for its own
        if getattr(collector, "_name", None) in {*METRICS, *GAUGES}:
            REGISTRY.unregister(collector)
