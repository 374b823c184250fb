"""The Check and List methods of health, over gRPC."""

from threading import Event

import grpc
import pytest
from grpc._server import _RPCState
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvstore.rpc.health.watchdog import LIVENESS, READINESS
from kvstore.rpc.server import SERVICES, THREAD_COUNT
from kvstore_client.testing import wait_until
from processes.in_memory import count_of
from stores.rpc_world import Server, refusal_of

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def asked(service: str) -> health_pb2.HealthCheckRequest:
    """Returns a request for one service."""
    return health_pb2.HealthCheckRequest(service=service)


def code_of(error: grpc.RpcError) -> grpc.StatusCode:
    """Returns the status code of a failed call."""
    assert isinstance(error, grpc.Call)
    return error.code()


def test_an_unknown_service_is_not_found(server: Server) -> None:
    """Check of an unknown service ends with NOT_FOUND."""
    with pytest.raises(grpc.RpcError) as caught:
        health_pb2_grpc.HealthStub(server.channel).Check(asked("none"), timeout=30)
    assert code_of(caught.value) is grpc.StatusCode.NOT_FOUND


def test_watch_is_unimplemented_and_takes_no_thread(server: Server) -> None:
    """Watch calls, even cancelled ones, neither stop the server nor occupy the checks' threads."""
    stub = health_pb2_grpc.HealthStub(server.channel)
    for watch in [stub.Watch(asked("")) for _ in range(200)][::2]:
        watch.cancel()
    with pytest.raises(grpc.RpcError) as caught:
        next(stub.Watch(asked(""), timeout=30))
    assert code_of(caught.value) is grpc.StatusCode.UNIMPLEMENTED
    assert stub.Check(asked(""), timeout=30).status == NOT_SERVING
    assert len(server.health.servicer.threads._threads) == 1


def test_all_services_are_listed(server: Server) -> None:
    """List returns each service by name with its status."""
    listed = health_pb2_grpc.HealthStub(server.channel).List(
        health_pb2.HealthListRequest(), timeout=30
    )
    listing = {name: each.status for name, each in listed.statuses.items()}
    assert listing == dict.fromkeys(("", READINESS, *SERVICES), NOT_SERVING) | {LIVENESS: SERVING}


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("unary_unary", "grpc.health.v1.Health/Check"),
        ("stream_stream", "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"),
    ],
)
def test_a_request_that_cannot_be_read_leaves_nothing_behind(
    server: Server, caplog: pytest.LogCaptureFixture, kind: str, method: str
) -> None:
    """A request that cannot be parsed adds nothing to the log or to memory."""
    stub = getattr(server.channel, kind)(f"/{method}", bytes, bytes)
    for _ in range(20):
        with pytest.raises(grpc.RpcError) as caught:
            list(stub(iter([b"\xff"]) if kind == "stream_stream" else b"\xff", timeout=30))
        assert refusal_of(caught.value).reason == "INVALID_FIELD"
    assert not caplog.records
    assert wait_until(lambda: count_of(_RPCState) < 20)


def test_health_answers_with_every_thread_of_the_server_stuck(server: Server) -> None:
    """Health checks have threads of their own, so they are answered when all other threads hang."""
    go_on = Event()
    stuck = [server.threads.submit(go_on.wait, 30) for _ in range(THREAD_COUNT)]
    try:
        stub = health_pb2_grpc.HealthStub(server.channel)
        assert stub.Check(asked(""), timeout=30).status == NOT_SERVING
    finally:
        go_on.set()
    assert all(each.result(30) for each in stuck)
