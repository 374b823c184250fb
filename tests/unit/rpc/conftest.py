"""A real server in this process, on a socket of its own."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from kvstore.core.cache import PrefixCache
from kvstore.core.values.limits import Limits, QuotaTable
from kvstore.rpc.health.watchdog import Health
from kvstore.rpc.lane import HotLanes
from kvstore.rpc.server import SERVICES, Sockets, build_server, call_threads
from kvstore.service.clock import MONOTONIC
from kvstore.service.store import KVStore
from kvstore.service.tenancy.credentials import Credentials
from kvstore.service.tenancy.tenant_lookup import Tenants
from kvstore.storage.arenas import Arenas
from kvstore.storage.host.host_memory import HostMemory
from stores.rpc_world import ADMIN_UID, EPOCH, PAGE_BYTES, VERSION, Server, Worker, party_of


@pytest.fixture
def over(request: pytest.FixtureRequest) -> str:
    """Names the transport of the request path: gRPC, unless a test is parametrized by it."""
    return str(getattr(request, "param", "grpc"))


@pytest.fixture
def start_server(tmp_path: Path, over: str) -> Iterator[Callable[..., Server]]:
    """Provides a function that starts servers with ``slots`` slots in extents of four.

    ``bind`` gets the server before it starts, to listen at more addresses. The server's workers
    make the calls of the request path over gRPC, or over lanes if ``over`` says so.
    """
    running: list[tuple[grpc.Server, Server, Arenas]] = []

    def start(
        *,
        slots: int = 16,
        limits: Limits | None = None,
        quotas: QuotaTable | None = None,
        tenants: Tenants | None = None,
        bind: Callable[[grpc.Server], object] = id,
    ) -> Server:
        clock = MONOTONIC
        arenas = Arenas(
            budget_bytes=slots * PAGE_BYTES, extent_bytes=4 * PAGE_BYTES, source=HostMemory()
        )
        cache = PrefixCache(EPOCH, limits or Limits(), quotas=quotas)
        store = KVStore(cache, arenas=arenas, clock=clock)
        credentials = Credentials(frozenset({ADMIN_UID}), tenants)
        health = Health(SERVICES, {}, clock=clock)
        path = tmp_path / f"kvstore-{len(running)}.sock"
        sockets = Sockets(path, tmp_path / "attach.sock")
        threads = call_threads()
        server = build_server(
            store,
            credentials,
            health,
            sockets=sockets,
            version=VERSION,
            clock=clock,
            threads=threads,
        )
        bind(server)
        server.start()
        channel = grpc.insecure_channel(f"unix:{path}")
        world = Server(store, credentials, health, channel, path, threads)
        if over == "lane":
            world.lanes = HotLanes(store, credentials, clock)
            world.lanes.start()
        running.append((server, world, arenas))
        return world

    yield start
    for server, world, arenas in running:
        if world.lanes is not None:
            world.lanes.close()
        world.channel.close()
        world.health.close()
        server.stop(None).wait()
        arenas.close()


@pytest.fixture
def server(start_server: Callable[..., Server]) -> Server:
    """Provides one server."""
    return start_server()


@pytest.fixture
def lanes(server: Server) -> HotLanes:
    """Provides the lanes of a server."""
    assert server.lanes is not None
    return server.lanes


@pytest.fixture
def open_lane(lanes: HotLanes) -> Iterator[Callable[[Worker], socket.socket]]:
    """Provides a function that opens a lane and returns the client's end."""
    ends: list[socket.socket] = []

    def opened(worker: Worker) -> socket.socket:
        near, far = socket.socketpair()
        ends.append(near)
        lanes.take(far, party_of(worker))
        return near

    yield opened
    for each in ends:
        each.close()
