"""A registry's metrics as an HTTP route."""

from collections.abc import Callable, Iterator
from math import inf
from threading import Lock
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric, Sample
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from kvstore import background
from kvstore.metrics.http_server import Response
from kvstore.service.clock import Clock

_Form: TypeAlias = tuple[Callable[[Collector], bytes], str]

# Each format by its encoder and content type, both from the library. The client's version
# parameters are not repeated in the response.
PLAIN: Final[_Form] = choose_encoder("")
OPENMETRICS: Final[_Form] = choose_encoder("application/openmetrics-text; version=1.0.0")
# Seconds between two snapshots of the store, however many clients scrape.
LIFETIME: Final = 1.0
# The pre-release version of OpenMetrics.
DRAFT = "version=0."


def process_registry() -> CollectorRegistry:
    """Returns a registry with the metrics of the process itself."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class Exposition(Collector):
    """Shows a registry in OpenMetrics if the client accepts it, else in Prometheus' text format.

    Collects at most once a second, for all clients together, and renders each format once.
    Thread-safe.
    """

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._mutex = Lock()
        self._collected_at = -inf
        self._families: list[Metric] = []
        self._texts: dict[str, Response] = {}

    def __call__(self, accept: str) -> Response:
        """Returns the values of all metrics, which are at most a second old."""
        encode, content_type = _chosen(accept)
        with self._mutex:
            if self._clock() - self._collected_at >= LIFETIME:
                self._families = list(self._registry.collect())
                for family in self._families:
                    family.samples = _Samples(family.samples)
                self._texts.clear()
                self._collected_at = self._clock()
            if content_type not in self._texts:
                self._texts[content_type] = Response(encode(self), content_type)
            return self._texts[content_type]

    def collect(self) -> Iterator[Metric]:
        """Yields what was collected last, and gives way to calls meanwhile."""
        for family in self._families:
            background.give_way()
            yield family


class _Samples(list[Sample]):
    """Samples that give way to calls while an encoder goes through them."""

    def __iter__(self) -> Iterator[Sample]:
        return background.gently(super().__iter__())


def _chosen(accept: str) -> _Form:
    """Returns OpenMetrics if a client accepts it."""
    for each in accept.split(","):
        kind, _, rest = each.partition(";")
        if kind.strip() == "application/openmetrics-text" and DRAFT not in rest:
            return OPENMETRICS
    return PLAIN
