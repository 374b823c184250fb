"""Counts on their way through vLLM: to its log and to its ``/metrics``."""

from collections import Counter
from typing import Any

from prometheus_client import REGISTRY, Gauge
from prometheus_client import Counter as PrometheusCounter
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from kvstore_vllm.counters import (
    ATTACHED,
    COUNTED,
    GAUGES,
    IS_ATTACHED,
    IS_NOT_ATTACHED,
    METRICS,
    in_words,
    summed,
)


class ConnectorStats(KVConnectorStats):
    """What was counted since the last one: at a rank, in the scheduler, or summed up."""

    @classmethod
    def taken(cls, counts: "Counter[str]") -> "ConnectorStats | None":
        """Takes what was counted, which begins anew; None for nothing."""
        if not counts:
            return None
        data = dict(counts)
        counts.subtract(data)
        for key in [key for key, value in counts.items() if not value]:
            del counts[key]
        return cls(data=data)

    def reset(self) -> None:
        """Forgets all."""
        self.data: dict[str, int] = {}

    def aggregate(self, other: KVConnectorStats) -> "ConnectorStats":
        """Adds another rank's, or a later step's."""
        self.data = summed(self.data, other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        """Returns what vLLM's log says of an interval."""
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
        _forget_earlier()
        counter = metric_types[PrometheusCounter]
        metrics = {
            name: counter(name, meaning, [*labelnames, label] if label else labelnames)
            for name, (meaning, label) in METRICS.items()
        }
        # All of them are there from the start, as zero.
        self._counters = {
            (engine, each.key): metrics[each.metric].labels(
                *([*values, each.label] if each.label else values)
            )
            for engine, values in per_engine_labelvalues.items()
            for each in COUNTED
        }
        # Of several API servers any one is told of a change.
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
        """Adds what one engine counted, and note whether it has the store."""
        for each in COUNTED:
            if value := transfer_stats_data.get(each.key):
                self._counters[engine_idx, each.key].inc(value / each.scale)
        if transfer_stats_data.keys() & {IS_ATTACHED, IS_NOT_ATTACHED}:
            self._attached[engine_idx].set(int(IS_ATTACHED in transfer_stats_data))


def _forget_earlier() -> None:
    """Let a second engine of a process register anew, as vLLM does with its own metrics."""
    for collector in list(REGISTRY._collector_to_names):  # noqa: SLF001  # as vLLM looks for its own
        if getattr(collector, "_name", None) in {*METRICS, *GAUGES}:
            REGISTRY.unregister(collector)
