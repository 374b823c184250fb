"""A registry's metrics as a route of HTTP."""

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from kvstore.http.request import Request
from kvstore.http.response import Response


def process_registry() -> CollectorRegistry:
    """Return a registry that has what the process itself takes."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class Exposition:
    """Shows a registry: in OpenMetrics to whoever accepts that, else in Prometheus' text."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def __call__(self, request: Request) -> Response:
        """Return all metrics of now."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._registry), content_type)
