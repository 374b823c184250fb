"""A registry's metrics as an HTTP route."""

from collections.abc import Callable
from threading import Lock
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from kvstore.metrics.http_server import Response
from kvstore.metrics.view import LIFETIME
from kvstore.service.clock import Clock

_Form: TypeAlias = tuple[Callable[[Collector], bytes], str]

# Each format by its encoder and content type, both from the library. The client's version
# parameters are not repeated in the response.
PLAIN: Final[_Form] = choose_encoder("")
OPENMETRICS: Final[_Form] = choose_encoder("application/openmetrics-text; version=1.0.0")
# The pre-release version of OpenMetrics.
DRAFT = "version=0."


def process_registry() -> CollectorRegistry:
    """Returns a registry with the metrics of the process itself."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class Exposition:
    """Shows a registry in OpenMetrics if the client accepts it, else in Prometheus' text format.

    Renders each format at most once a second, for all clients together. Thread-safe.
    """

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._mutex = Lock()
        self._written: dict[str, tuple[float, Response]] = {}

    def __call__(self, accept: str) -> Response:
        """Returns the current values of all metrics."""
        encode, content_type = _chosen(accept)
        with self._mutex:
            written = self._written.get(content_type)
            if written is None or self._clock() - written[0] >= LIFETIME:
                response = Response(encode(self._registry), content_type)
                self._written = {
                    kind: each
                    for kind, each in self._written.items()
                    if self._clock() - each[0] < LIFETIME
                }
                written = self._written[content_type] = self._clock(), response
            return written[1]


def _chosen(accept: str) -> _Form:
    """Returns OpenMetrics if a client accepts it."""
    for each in accept.split(","):
        kind, _, rest = each.partition(";")
        if kind.strip() == "application/openmetrics-text" and DRAFT not in rest:
            return OPENMETRICS
    return PLAIN
