"""The linker's counts in SGLang's ``/metrics`` and in its log."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

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

_logger = logging.getLogger(__name__)

# Seconds between updates of the metrics, and between lines of the log.
METRIC_SECONDS: Final = 1.0
LOG_SECONDS: Final = 10.0


class LinkerMetrics:
    """The Prometheus metrics of one rank, which SGLang serves with its own.

    Make it in the rank's process, after SGLang named the folder of its processes' metrics. They
    have the names of the connectors for vLLM.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        # SGLang brings it, and only a process with metrics loads it.
        from prometheus_client import Counter as PrometheusCounter  # noqa: PLC0415
        from prometheus_client import Gauge  # noqa: PLC0415

        names, values = list(labels), list(labels.values())
        metrics = {
            name: PrometheusCounter(name, meaning, [*names, label] if label else names)
            for name, (meaning, label) in METRICS.items()
        }
        # All of them exist from the start, with the value zero.
        self._counters = {
            each.key: metrics[each.metric].labels(*values, *([each.label] if each.label else []))
            for each in COUNTED
        }
        gauge = Gauge(ATTACHED, GAUGES[ATTACHED], names, multiprocess_mode="mostrecent")
        self._attached = gauge.labels(*values)
        self._attached.set(0)

    def observe(self, counts: Mapping[str, int]) -> None:
        """Adds the counts of an interval, and notes whether the engine uses the store."""
        for each in COUNTED:
            if value := counts.get(each.key):
                self._counters[each.key].inc(value / each.scale)
        if counts.keys() & {IS_ATTACHED, IS_NOT_ATTACHED}:
            self._attached.set(int(IS_ATTACHED in counts))


class CountReport:
    """Takes counts out once a second, for Prometheus and for a line of the log.

    One thread uses it. Without ``metrics`` it only logs.
    """

    def __init__(
        self,
        counts: "Counter[str]",
        metrics: LinkerMetrics | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counts = counts
        self._metrics = metrics
        self._clock = clock
        self._unlogged: dict[str, int] = {}
        self._observed_at = self._logged_at = clock()

    def tick(self) -> None:
        """Reports what is due."""
        now = self._clock()
        if now - self._observed_at < METRIC_SECONDS:
            return
        self._observed_at = now
        taken = take_counts(self._counts)
        if self._metrics is not None:
            self._metrics.observe(taken)
        self._unlogged = summed(self._unlogged, taken)
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            self._log()

    def _log(self) -> None:
        words = in_words(self._unlogged)
        self._unlogged = {}
        if words:
            counts = ", ".join(f"{name} {value}" for name, value in words.items())
            _logger.info("kvstore_counts", extra={"counts": counts})
