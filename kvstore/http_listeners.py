"""The HTTP listeners of the settings, and their routes."""

from collections.abc import Mapping
from contextlib import ExitStack
from http import HTTPStatus

import structlog

from kvstore.config.settings import Config
from kvstore.http.connection import Route
from kvstore.http.request import Request
from kvstore.http.response import Response
from kvstore.http.server import HttpServer
from kvstore.metrics.collector import StoreCollector
from kvstore.metrics.exposition import Exposition, process_registry
from kvstore.metrics.view import Views
from kvstore.rpc.health.probes import OwnerProbe
from kvstore.rpc.health.watchdog import LIVENESS, READINESS, Health
from kvstore.service.clock import Clock
from kvstore.service.store import KVStore
from kvstore.store_view import StoreView

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


def listen_for_http(
    config: Config,
    store: KVStore,
    health: Health,
    owner: OwnerProbe,
    clock: Clock,
    stack: ExitStack,
) -> None:
    """Starts the listeners; ``stack`` closes them, and ``health`` watches them.

    ``owner`` measures the waits for the mutex. Raises ``UnusableHttpAddress``.
    """
    views = Views(StoreView(store, health, owner, clock), clock)
    if config.metrics_listen is not None:
        routes = metrics_routes(views, health, clock)
        _listen("metrics", config.metrics_listen, routes, health, clock, stack)


def metrics_routes(views: Views, health: Health, clock: Clock) -> dict[str, Route]:
    """Returns the routes for Prometheus and for probes."""
    registry = process_registry()
    registry.register(StoreCollector(views))
    return {
        "/metrics": Exposition(registry, clock),
        "/healthz": _says(health, READINESS),
        "/livez": _says(health, LIVENESS),
    }


def _listen(
    name: str,
    address: str,
    routes: Mapping[str, Route],
    health: Health,
    clock: Clock,
    stack: ExitStack,
) -> None:
    server = HttpServer(address, routes, clock=clock, name=name)
    server.start()
    stack.callback(server.close)
    health.watch(name, server)
    log.info("http_listening", shows=name, host=server.address.host, port=server.address.port)


def _says(health: Health, name: str) -> Route:
    def answer(request: Request) -> Response:
        del request
        if health.says(name):
            return Response.text("ok")
        return Response.text(f"no {name}", HTTPStatus.SERVICE_UNAVAILABLE)

    return answer
