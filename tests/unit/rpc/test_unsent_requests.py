"""Calls whose requests never arrive, and the limits of what they can block."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Event

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvstore.rpc.health.servicer import CHECK_THREADS, MAX_CHECKS
from kvstore.rpc.server import MAX_CALLS, MAX_CONNECTIONS, THREAD_COUNT, listen
from kvstore.v1 import store_pb2
from stores.rpc_world import Server

CONTRACT = "/kvstore.v1.StoreService/GetStats"
CHECK = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


@contextmanager
def unsent(
    server: Server,
    method: str,
    count: int,
    *metadata: tuple[str, str],
    timeout: float | None = None,
) -> Iterator[None]:
    """Begins calls that never send their request, without credential or deadline by default."""
    over = Event()

    def nothing() -> Iterator[bytes]:
        over.wait()
        yield from ()

    with grpc.insecure_channel(f"unix:{server.path}") as channel:
        begin = channel.stream_stream(method)
        calls = [begin(nothing(), timeout=timeout, metadata=metadata) for _ in range(count)]
        try:
            yield
        finally:
            over.set()
            for call in calls:
                call.cancel()


@pytest.mark.parametrize("method", [CONTRACT, CHECK, "/grpc.health.v1.Health/Watch", REFLECTION])
def test_strangers_who_send_no_request_stop_nobody(server: Server, method: str) -> None:
    """Calls without a request take no thread from other calls."""
    worker = server.worker()
    with unsent(server, method, 3 * THREAD_COUNT):
        worker.ask(worker.store.GetStats, store_pb2.GetStatsRequest())


def test_silent_connections_over_tcp_are_bounded(start_server: Callable[..., Server]) -> None:
    """The number of silent TCP connections is limited, and the unix socket still has room."""
    ports: list[int] = []
    server = start_server(bind=lambda each: ports.append(listen(each, "127.0.0.1:0", None)))
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", ports[0])))
            for _ in range(MAX_CONNECTIONS + 20)
        ]
        # The server speaks first on those that it keeps.
        assert sum(spoken_to(each) for each in silent) == MAX_CONNECTIONS
        worker = server.worker()
        worker.ask(worker.store.GetStats, store_pb2.GetStatsRequest())


def spoken_to(connection: socket.socket) -> bool:
    """Returns whether the server sends something instead of hanging up."""
    try:
        return connection.recv(1) != b""
    except ConnectionResetError:
        return False


def test_a_tenant_that_sends_no_requests_leaves_threads_to_others(server: Server) -> None:
    """A tenant that never sends its requests occupies at most half of the threads."""
    worker = server.worker(uid=2)
    authorization = ("authorization", f"Bearer {server.credentials.issue(3)}")
    with unsent(server, CONTRACT, 3 * THREAD_COUNT, authorization, timeout=50):
        worker.ask(worker.store.GetStats, store_pb2.GetStatsRequest())


def test_unsent_probes_leave_room_for_calls(
    start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting health checks have a limit below the number of calls, so calls find room."""
    assert MAX_CHECKS < MAX_CALLS // 2
    monkeypatch.setattr("kvstore.rpc.server.MAX_CALLS", MAX_CHECKS)
    server = start_server()
    worker = server.worker()
    with unsent(server, CHECK, MAX_CHECKS + 1):
        worker.ask(worker.store.GetStats, store_pb2.GetStatsRequest())


def test_a_probe_that_does_not_come_is_ended(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A health check whose request does not arrive in time is ended."""
    monkeypatch.setattr("kvstore.rpc.standard_services.PATIENCE", 0.1)
    stub = health_pb2_grpc.HealthStub(server.channel)
    with unsent(server, CHECK, 2 * CHECK_THREADS):
        stub.Check(health_pb2.HealthCheckRequest(service="liveness"), timeout=30)
