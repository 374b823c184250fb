"""A registry's metrics as a route of HTTP."""

from threading import Lock

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from kvstore.http.request import Request
from kvstore.http.response import Response
from kvstore.metrics.view import LIFETIME
from kvstore.service.clock import Clock


def process_registry() -> CollectorRegistry:
    """Return a registry that has what the process itself takes."""
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
        """Return all metrics of now."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
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
