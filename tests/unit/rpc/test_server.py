"""The gRPC server: its services, its limits and its socket."""

import stat
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvstore.core.values.limits import Limits
from kvstore.rpc.health.watchdog import Health
from kvstore.rpc.server import SERVICES, Sockets, build_server
from kvstore.service.clock import MONOTONIC
from kvstore.v1 import prefix_cache_pb2
from stores.rpc_world import Server


def test_the_services_are_the_contract_s() -> None:
    """The server serves every service of the contract by its full name."""
    names = ("LeaseService", "PrefixCacheService", "NamedPinService", "StoreService")
    assert [f"kvstore.v1.{name}" for name in names] == list(SERVICES)


def test_the_socket_is_its_owner_s(server: Server) -> None:
    """Only the socket's owner may connect to it."""
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o600


def test_a_path_may_hold_any_character(start_server: Callable[..., Server], tmp_path: Path) -> None:
    """A socket path may have characters that are special in a gRPC address."""
    odd = tmp_path / "a b%41#?"
    odd.mkdir()
    server = start_server()
    sockets = Sockets(odd / "kvstore.sock", odd / "attach.sock")
    clock = MONOTONIC
    built = build_server(
        server.store,
        server.credentials,
        Health([], {}, clock=clock),
        sockets=sockets,
        version="1",
        clock=clock,
    )
    assert [each.name for each in odd.iterdir()] == ["kvstore.sock"]
    built.stop(None).wait()


def test_health_needs_neither_credential_nor_deadline(server: Server) -> None:
    """Check answers without credential and deadline, before and after the server is ready."""
    stub = health_pb2_grpc.HealthStub(server.channel)

    def statuses() -> set[int]:
        requests = [health_pb2.HealthCheckRequest(service=name) for name in ("", *SERVICES)]
        return {stub.Check(each).status for each in requests}

    assert statuses() == {health_pb2.HealthCheckResponse.NOT_SERVING}
    server.health.begin_serving()
    assert statuses() == {health_pb2.HealthCheckResponse.SERVING}


def test_a_message_over_the_limit_is_refused(start_server: Callable[..., Server]) -> None:
    """A message of more bytes than the limit is refused before it reaches the store."""
    worker = start_server(limits=Limits(max_message_bytes=1 << 16)).worker()
    request = prefix_cache_pb2.PeekPrefixRequest(namespace_id=bytes(16), tokens=bytes(1 << 16))
    authorization = ("authorization", f"Bearer {worker.server.credentials.issue(2)}")
    with pytest.raises(grpc.RpcError) as caught:
        worker.prefix_cache.PeekPrefix(request, timeout=30, metadata=(authorization,))
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
