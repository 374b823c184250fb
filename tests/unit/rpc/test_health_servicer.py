"""Health over gRPC, and those who watch it."""

from threading import Event

import grpc
import pytest
from grpc._server import _RPCState
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvstore.rpc.health.servicer import HealthServicer
from kvstore.rpc.health.watchdog import LIVENESS, READINESS
from kvstore.rpc.server import SERVICES, THREAD_COUNT
from kvstore_client.testing import wait_until
from processes.in_memory import count_of
from stores.rpc_world import Server, refusal_of

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def asked(service: str) -> health_pb2.HealthCheckRequest:
    """Returns a request."""
    return health_pb2.HealthCheckRequest(service=service)


class Call:
    """A call of Watch that stays open until :meth:`end`, or has ended before it began."""

    def __init__(self, *, ended: bool = False) -> None:
        self.ended = ended
        self.end = Event().set

    def add_callback(self, callback: object) -> bool:
        """Takes what is to be called at the end, unless it has come."""
        self.end = callback  # type: ignore[assignment]
        return not self.ended


def test_cancelled_watches_do_not_stop_the_server(server: Server) -> None:
    """However they meet with watches that begin, and with changes of the status."""
    stub = health_pb2_grpc.HealthStub(server.channel)
    for round_number in range(20):
        watches = [stub.Watch(asked("")) for _ in range(8)]
        next(watches[0])
        server.health.servicer.set((SERVING, NOT_SERVING)[round_number % 2])
        for watch in watches:
            watch.cancel()
        assert stub.Check(asked(""), timeout=30).status in (SERVING, NOT_SERVING)


def test_a_watcher_is_told_each_change_once(server: Server) -> None:
    """What it was told already is not said again."""
    stub = health_pb2_grpc.HealthStub(server.channel)
    watch = stub.Watch(asked(SERVICES[0]), timeout=30)
    servicer = server.health.servicer
    assert next(watch).status == NOT_SERVING
    for said in (NOT_SERVING, SERVING, NOT_SERVING):
        servicer.set(said)
        if said == SERVING:
            assert next(watch).status == SERVING
    assert next(watch).status == NOT_SERVING
    servicer.set(SERVING, final=True)
    servicer.set(NOT_SERVING)
    assert next(watch).status == SERVING
    assert stub.Check(asked(""), timeout=30).status == SERVING
    watch.cancel()


def test_an_unknown_service_is_said_to_be_unknown(server: Server) -> None:
    """Watch says so, Check ends with NOT_FOUND."""
    stub = health_pb2_grpc.HealthStub(server.channel)
    watch = stub.Watch(asked("none"), timeout=30)
    assert next(watch).status == SERVICE_UNKNOWN
    watch.cancel()
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(asked("none"), timeout=30)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_all_services_are_listed(server: Server) -> None:
    """Each by its name, with what is said of it."""
    listed = health_pb2_grpc.HealthStub(server.channel).List(
        health_pb2.HealthListRequest(), timeout=30
    )
    said = {name: each.status for name, each in listed.statuses.items()}
    assert said == dict.fromkeys(("", READINESS, *SERVICES), NOT_SERVING) | {LIVENESS: SERVING}


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("unary_unary", "grpc.health.v1.Health/Check"),
        ("unary_stream", "grpc.health.v1.Health/Watch"),
        ("stream_stream", "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"),
    ],
)
def test_a_request_that_cannot_be_read_leaves_nothing_behind(
    server: Server, caplog: pytest.LogCaptureFixture, kind: str, method: str
) -> None:
    """Whoever reaches the socket needs no credential for it: neither log nor memory grow."""
    stub = getattr(server.channel, kind)(f"/{method}", bytes, bytes)
    for _ in range(20):
        with pytest.raises(grpc.RpcError) as caught:
            list(stub(iter([b"\xff"]) if kind == "stream_stream" else b"\xff", timeout=30))
        assert refusal_of(caught.value).reason == "INVALID_FIELD"
    assert not caplog.records
    assert wait_until(lambda: count_of(_RPCState) < 20)


def test_watchers_are_bounded(server: Server) -> None:
    """One too many is refused, with the contract's reason."""
    server.health.servicer._max_watchers = 1
    stub = health_pb2_grpc.HealthStub(server.channel)
    first = stub.Watch(asked(""), timeout=30)
    next(first)
    with pytest.raises(grpc.RpcError) as caught:
        next(stub.Watch(asked(""), timeout=30))
    assert refusal_of(caught.value).reason == "QUOTA_EXCEEDED"
    first.cancel()


def test_a_watch_that_ended_is_forgotten() -> None:
    """At its end, or at once where that came before it began; its place is free again."""
    servicer = HealthServicer([""], max_watchers=1)
    for call in (Call(ended=True), Call()):
        servicer.Watch(asked(""), call, lambda _: None)  # type: ignore[arg-type]
    call.end()
    servicer.Watch(asked(""), Call(), lambda _: None)  # type: ignore[arg-type]
    servicer.close()


def test_a_watcher_that_cannot_be_told_is_forgotten() -> None:
    """The others are told as before."""
    servicer = HealthServicer([""])
    told, failed = Event(), Event()

    def fail(_: object) -> None:
        failed.set()
        raise ValueError

    servicer.Watch(asked(""), Call(), fail)  # type: ignore[arg-type]
    assert failed.wait(30)
    servicer.Watch(asked(""), Call(), lambda _: told.set())  # type: ignore[arg-type]
    assert told.wait(30)
    servicer.close()


def test_health_answers_with_every_thread_of_the_server_stuck(server: Server) -> None:
    """The check has a thread of its own: what is stuck is said, and not a timeout."""
    go_on = Event()
    stuck = [server.threads.submit(go_on.wait, 30) for _ in range(THREAD_COUNT)]
    try:
        stub = health_pb2_grpc.HealthStub(server.channel)
        assert stub.Check(asked(""), timeout=30).status == NOT_SERVING
    finally:
        go_on.set()
    assert all(each.result(30) for each in stuck)
