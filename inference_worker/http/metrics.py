"""The HTTP server's metrics for Prometheus; names are vLLM's for the same quantities."""

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from inference_worker.engine.async_engine import EngineStats
from inference_worker.http.parameters import IgnoredCounter

PREFIX: Final = "kvstore_worker"
FIRST_TOKEN_SECONDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
)
TOKEN_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class HttpCounters:
    """The metrics of one HTTP server. One event loop uses it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Registers the metrics."""
        self.registry = registry
        self.requests = Counter(
            "http_requests",
            "HTTP requests by route and status; 499: the client went away before an answer.",
            ["route", "status"],
            namespace=PREFIX,
            registry=registry,
        )
        self.ends = Counter(
            "request_success",
            "Answers that ended, by why: stop, length, abort (the client went away).",
            ["finished_reason"],
            namespace=PREFIX,
            registry=registry,
        )
        self.failures = Counter(
            "request_failure",
            "Answers that the server failed to give, or to end.",
            namespace=PREFIX,
            registry=registry,
        )
        self.generated = Counter(
            "generation_tokens", "Tokens of answers.", namespace=PREFIX, registry=registry
        )
        self.first_token = Histogram(
            "time_to_first_token_seconds",
            "From a request's body to its first token.",
            namespace=PREFIX,
            registry=registry,
            buckets=FIRST_TOKEN_SECONDS,
        )
        self.between_tokens = Histogram(
            "inter_token_latency_seconds",
            "Between two tokens of an answer.",
            namespace=PREFIX,
            registry=registry,
            buckets=TOKEN_SECONDS,
        )
        self.ignored = IgnoredCounter(
            Counter(
                "ignored_parameters",
                "Requests with a parameter that nobody knows, which was ignored, by its name.",
                ["parameter"],
                namespace=PREFIX,
                registry=registry,
            )
        )
        self.engine = EngineCollector()
        registry.register(self.engine)


class EngineCollector(Collector):
    """Exports an engine's latest statistics; nothing before the first."""

    def __init__(self) -> None:
        """Starts without statistics."""
        self.stats: EngineStats | None = None

    def collect(self) -> Iterator[Metric]:
        """Yields the engine's metrics."""
        stats = self.stats
        if stats is None:
            return
        for name, meaning, value in (
            ("num_requests_waiting", "Requests that wait for the engine.", stats.waiting),
            ("num_requests_running", "Requests that have pages.", stats.running),
            ("engines", "Engines that serve.", stats.engines),
            ("engines_attached", "Of these, attached to a store.", stats.engines_attached),
        ):
            yield GaugeMetricFamily(f"{PREFIX}_{name}", meaning, value)
        reused = stats.matched_tokens + stats.copied_tokens
        for name, meaning, value in (
            ("requests", "Requests that the engine took.", stats.requests),
            ("num_preemptions", "Requests that gave way to older ones.", stats.preemptions),
            ("engine_restarts", "Engine processes started again.", stats.engine_restarts),
            ("moved_requests", "Requests that another engine took over.", stats.moved_requests),
            ("prompt_tokens", "Tokens of prompts.", stats.prompt_tokens),
            ("prefix_cache_hits", "Tokens of prompts that were cached.", reused),
            ("prefix_matched_tokens", "Of these, used in place.", stats.matched_tokens),
            ("prefix_copied_tokens", "Of these, used from a copy.", stats.copied_tokens),
            ("prefilled_tokens", "Tokens of prompts that were computed.", stats.prefilled_tokens),
            ("computed_tokens", "All positions that the model ran.", stats.computed_tokens),
        ):
            yield CounterMetricFamily(f"{PREFIX}_{name}", meaning, value)
        loaded = CounterMetricFamily(
            f"{PREFIX}_loaded_tokens",
            "Of the matched tokens, those that the store loaded for their request, by tier: disk,"
            " or remote, the store that hosts share.",
            labels=["tier"],
        )
        loaded.add_metric(["disk"], stats.disk_tokens)
        loaded.add_metric(["remote"], stats.remote_tokens)
        yield loaded
