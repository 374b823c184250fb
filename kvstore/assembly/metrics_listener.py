"""The server's metrics and probes over HTTP, asked of its parts."""

from contextlib import ExitStack
from functools import partial
from http import HTTPStatus

import structlog

from kvstore import __version__
from kvstore.core import Identity
from kvstore.metrics.collector import StoreCollector
from kvstore.metrics.exposition import Exposition, process_registry
from kvstore.metrics.http_server import HttpServer, Response, Route
from kvstore.metrics.view import ThreadView, View
from kvstore.rpc.health.probes import OwnerProbe
from kvstore.rpc.health.watchdog import LIVENESS, READINESS, Health
from kvstore.service.clock import Clock
from kvstore.service.store import KVStore

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Sees all, and calls nothing.
LOOKER = Identity("", admin=True)


def listen_for_metrics(
    address: str,
    store: KVStore,
    health: Health,
    owner: OwnerProbe,
    clock: Clock,
    stack: ExitStack,
) -> None:
    """Starts the listener; ``stack`` closes it, and ``health`` watches it.

    ``owner`` has what is known of the mutex. Raises ``UnusableHttpAddress``.
    """
    registry = process_registry()
    registry.register(StoreCollector(partial(view_of, store, health, owner, clock)))
    routes: dict[str, Route] = {
        "/metrics": Exposition(registry, clock),
        "/healthz": partial(_probe, health, READINESS, store),
        "/livez": partial(_probe, health, LIVENESS, store),
    }
    server = HttpServer(address, routes, clock=clock)
    server.start()
    stack.callback(server.close)
    health.watch("metrics", server)
    log.info("http_listening", shows="metrics", host=server.host, port=server.port)


def _probe(health: Health, name: str, store: KVStore, accept: str) -> Response:
    del accept
    if health.says(name):
        why = store.succession.failure
        detail = f"the memory ends with the server: {why}\n" if why else ""
        return Response(f"ok\n{detail}".encode())
    return Response(f"no {name}\n".encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)


def view_of(store: KVStore, health: Health, owner: OwnerProbe, clock: Clock) -> View:
    """Returns the store now. Takes the store's mutex for some leases at a time."""
    began = clock()
    stats = store.stats_in_parts(LOOKER)
    now = clock()
    return View(
        stats=stats,
        requests=store.traffic.all_requests(),
        tier_bytes=store.tier_bytes,
        moves=store.mover.ledger.read(),
        tier3=store.tier3.use(),
        calls={
            (lane, method, outcome): counts
            for lane, times in store.call_times.items()
            for (method, outcome), counts in times.read().items()
        },
        succession=store.succession.use(),
        thrash=store.thrash.ratio,
        events=store.events.use(),
        kv_events=store.kv_event_uses(),
        threads={
            name: ThreadView(max(now - each.last_tick, 0.0), getattr(each, "failure_count", 0))
            for name, each in health.threads.items()
        },
        ready=health.says(READINESS),
        mutex_waits=owner.waits.read(),
        seconds=now - began,
        version=__version__,
        prefix_cache_backend=store.prefix_cache_backend,
    )
