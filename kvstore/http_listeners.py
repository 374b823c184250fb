"""The HTTP listeners that the settings ask for, and what each of them shows."""

from collections.abc import Mapping
from contextlib import ExitStack
from http import HTTPStatus

import structlog

from kvstore.config import Config
from kvstore.http.connection import Route
from kvstore.http.request import Request
from kvstore.http.response import Response
from kvstore.http.server import HttpServer
from kvstore.metrics.exposition import Exposition, process_registry
from kvstore.rpc.health import LIVENESS, READINESS, Health
from kvstore.service.clock import Clock

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


def listen_for_http(config: Config, health: Health, clock: Clock, stack: ExitStack) -> None:
    """Start the listeners; ``stack`` closes them, and ``health`` watches them.

    Raises ``UnusableHttpAddress``.
    """
    if config.metrics_listen is not None:
        _listen("metrics", config.metrics_listen, metrics_routes(health), health, clock, stack)


def metrics_routes(health: Health) -> dict[str, Route]:
    """Return what Prometheus and probes ask for."""
    return {
        "/metrics": Exposition(process_registry()),
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
