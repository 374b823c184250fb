"""A registry's metrics as a route of HTTP."""

from collections.abc import Callable
from threading import Lock
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from kvstore.http.request import Request
from kvstore.http.response import Response
from kvstore.metrics.view import LIFETIME
from kvstore.service.clock import Clock

_Form: TypeAlias = tuple[Callable[[Collector], bytes], str]

# What is spoken, by its encoder and its content type: both as the library names them, and nothing
# of what a client says of versions is said again.
PLAIN: Final[_Form] = choose_encoder("")
OPENMETRICS: Final[_Form] = choose_encoder("application/openmetrics-text; version=1.0.0")
# Of OpenMetrics, what came before its first version.
DRAFT = "version=0."


def process_registry() -> CollectorRegistry:
    """Returns a registry that has what the process itself takes."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class Exposition:
    """Shows a registry: in OpenMetrics to whoever accepts that, else in Prometheus' text.

    Each is written at most once a second, however many ask. Thread-safe.
    """

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._mutex = Lock()
        self._written: dict[str, tuple[float, Response]] = {}

    def __call__(self, request: Request) -> Response:
        """Returns all metrics of now."""
        encode, content_type = _chosen(request.headers.get("accept", ""))
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
    """Returns OpenMetrics where a client accepts it."""
    for each in accept.split(","):
        kind, _, rest = each.partition(";")
        if kind.strip() == "application/openmetrics-text" and DRAFT not in rest:
            return OPENMETRICS
    return PLAIN
