"""The steps of a call on its way to a servicer, on a real server."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from kvstore.core.cache import PrefixCache
from kvstore.core.values.limits import Limits
from kvstore.errors import PoolExhausted
from kvstore.logs import merge_call
from kvstore.rpc.fair_queue import CallThreads
from kvstore.rpc.grpc_adapter import GrpcAdapter
from kvstore.rpc.pipeline import Call, Pipeline
from kvstore.service.clock import MONOTONIC
from kvstore.service.store import KVStore
from kvstore.service.tenancy.credentials import Credentials, Known
from kvstore.storage.arenas import Arenas
from kvstore.storage.host.host_memory import HostMemory
from kvstore.v1 import store_pb2 as pb
from kvstore.v1 import store_pb2_grpc
from stores.rpc_world import Refused, refusal_of

MAX_DEADLINE = 60.0
LIMITS = Limits(max_deadline=MAX_DEADLINE)
METHOD = "/kvstore.v1.StoreService/"


class Raiser:
    """A servicer that answers, refuses and fails, and notes the context of its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, object]]] = []
        self.remaining: list[float | None] = []

    def __getattr__(self, name: str) -> object:
        """Returns any other method of the service, which no test calls."""
        return name

    def GetCapabilities(  # noqa: N802
        self, request: pb.GetCapabilitiesRequest, call: Call
    ) -> pb.GetCapabilitiesResponse:
        """Answers."""
        del request
        self.remaining.append(call.remaining)
        self.calls.append(("GetCapabilities", merge_call(None, "", {})))
        return pb.GetCapabilitiesResponse(server_version="x")

    def GetStats(self, request: pb.GetStatsRequest, call: Call) -> None:  # noqa: N802
        """Refuses."""
        del request, call
        raise PoolExhausted(requested=2, available=1)

    def ListNamespaces(self, request: pb.ListNamespacesRequest, call: Call) -> None:  # noqa: N802
        """Fails with a bug."""
        del request, call
        raise ZeroDivisionError

    def WatchEvents(self, request: pb.WatchEventsRequest, call: Call) -> None:  # noqa: N802
        """Answers once, then refuses."""
        del request
        assert call.stream is not None
        call.stream.send(pb.WatchEventsResponse(sequence_number=1))
        raise PoolExhausted(requested=2, available=1)


def adapter_of(credentials: Credentials, threads: CallThreads) -> GrpcAdapter:
    """Returns the interceptor of a store that is never asked."""
    arenas = Arenas(budget_bytes=64, extent_bytes=64, source=HostMemory())
    store = KVStore(PrefixCache(1, LIMITS), arenas=arenas, clock=MONOTONIC)
    return GrpcAdapter(Pipeline(store, MONOTONIC), credentials, threads, threads)


class Details:
    """A call as an interceptor sees it."""

    def __init__(self, name: str) -> None:
        self.method = METHOD + name
        self.invocation_metadata = ()


class Gate:
    """A server with the interceptor, and its caller."""

    def __init__(self, path: Path) -> None:
        credentials = Credentials()
        self.servicer = Raiser()
        self.credentials = credentials
        self.credential = credentials.issue(7)
        threads = CallThreads(2, 64)
        self.server = grpc.server(threads, interceptors=[adapter_of(credentials, threads)])
        servicer: Any = self.servicer
        store_pb2_grpc.add_StoreServiceServicer_to_server(servicer, self.server)
        self.server.add_insecure_port(f"unix:{path}")
        self.server.start()
        self.channel = grpc.insecure_channel(f"unix:{path}")
        self.stub = store_pb2_grpc.StoreServiceStub(self.channel)

    def call(
        self, method: str, body: bytes = b"", *, timeout: float | None = 30, request_id: str = ""
    ) -> bytes:
        """Returns a call's answer as bytes. Raises Refused if the call fails."""
        pairs = {"authorization": f"Bearer {self.credential}" if self.credential else ""}
        pairs["x-request-id"] = request_id
        metadata = tuple((key, value) for key, value in pairs.items() if value)
        send: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(METHOD + method)
        try:
            return send(body, timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            raise refusal_of(error) from error

    def logged(self, method: str, request_id: str = "") -> list[EventDict]:
        """Returns the lines that a call logs, whatever its outcome."""
        with capture_logs(processors=[merge_call]) as lines, suppress(Refused):
            self.call(method, request_id=request_id)
        return of_call(lines, method)


def of_call(lines: list[EventDict], method: str) -> list[EventDict]:
    """Returns the lines that were logged within a call of the method."""
    return [line for line in lines if line.get("method") == METHOD + method]


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """Provides a server with the interceptor."""
    gate = Gate(tmp_path / "gate.sock")
    yield gate
    gate.channel.close()
    gate.server.stop(None).wait()


def test_a_call_with_credential_and_deadline_comes_through(gate: Gate) -> None:
    """An accepted call reaches the servicer with its message, request id and tenant."""
    answer = pb.GetCapabilitiesResponse.FromString(gate.call("GetCapabilities", request_id="id-1"))
    assert answer.server_version == "x"
    context = {"request_id": "id-1", "tenant": "uid-7", "method": METHOD + "GetCapabilities"}
    assert gate.servicer.calls == [("GetCapabilities", context)]


@pytest.mark.parametrize("credential", ["", "unknown"])
def test_without_a_known_credential_nothing_is_called(gate: Gate, credential: str) -> None:
    """A call with no credential or an unknown one is refused before the servicer."""
    gate.credential = credential
    with pytest.raises(Refused) as caught:
        gate.call("GetCapabilities", b"\xff not a message")
    assert caught.value.reason == "CREDENTIAL_REQUIRED"
    assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
    assert gate.servicer.calls == []


@pytest.mark.parametrize("timeout", [None, MAX_DEADLINE * 1.5, 10.0**6])
def test_a_call_needs_a_deadline_within_the_limit(gate: Gate, timeout: float | None) -> None:
    """A call with no deadline or a too long one is refused before the servicer."""
    with pytest.raises(Refused) as caught:
        gate.call("GetCapabilities", timeout=timeout)
    assert caught.value.reason == "INVALID_FIELD"
    assert caught.value.metadata["field"] == "deadline"
    assert gate.servicer.calls == []


def test_the_longest_deadline_is_allowed(gate: Gate) -> None:
    """A timeout of exactly the limit is accepted, although gRPC rounds it up on its way."""
    gate.call("GetCapabilities", timeout=MAX_DEADLINE)
    assert len(gate.servicer.calls) == 1


def test_a_call_has_the_time_that_is_left_once_its_request_is_there(gate: Gate) -> None:
    """A servicer does not wait beyond the deadline of a call whose request came late."""
    timeout, late = 30.0, 0.5

    def request() -> Iterator[bytes]:
        sleep(late)
        yield b""

    send: grpc.StreamUnaryMultiCallable[bytes, bytes] = gate.channel.stream_unary(
        METHOD + "GetCapabilities"
    )
    send(request(), timeout=timeout, metadata=(("authorization", f"Bearer {gate.credential}"),))
    [remaining] = gate.servicer.remaining
    assert remaining is not None
    assert 0 < remaining < timeout - late / 2


def test_what_is_no_message_is_an_invalid_field(gate: Gate) -> None:
    """A body that cannot be parsed is refused as INVALID_FIELD, not with gRPC's INTERNAL."""
    with pytest.raises(Refused) as caught:
        gate.call("GetCapabilities", b"\xff not a message")
    assert caught.value.reason == "INVALID_FIELD"
    assert caught.value.metadata["field"] == "request"
    assert gate.servicer.calls == []


def test_an_error_of_ours_becomes_its_status(gate: Gate) -> None:
    """An error of the store reaches the caller with code, reason, metadata and retry delay."""
    with pytest.raises(Refused) as caught:
        gate.call("GetStats")
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.reason == "POOL_EXHAUSTED"
    assert caught.value.metadata == {"requested": "2", "available": "1"}
    assert caught.value.detail_types == ["google.rpc.ErrorInfo", "google.rpc.RetryInfo"]


def test_a_bug_becomes_internal_and_names_the_request(gate: Gate) -> None:
    """Any other exception becomes INTERNAL with the request id, and with no detail of itself."""
    with pytest.raises(Refused) as caught:
        gate.call("ListNamespaces", request_id="id-2")
    assert caught.value.code is grpc.StatusCode.INTERNAL
    assert (caught.value.reason, caught.value.metadata) == ("INTERNAL", {"request_id": "id-2"})


def test_a_bug_is_logged_under_the_request_id(gate: Gate) -> None:
    """A bug is logged under the request id that the caller gets."""
    failed, handled = gate.logged("ListNamespaces", "id-3")
    assert (failed["event"], failed["log_level"]) == ("request_failed", "error")
    assert failed["request_id"] == handled["request_id"] == "id-3"
    assert handled["reason"] == "INTERNAL"


def test_a_bug_in_a_call_without_an_id_has_one(gate: Gate) -> None:
    """A call without a request id gets one id, which the caller and the log share."""
    with capture_logs(processors=[merge_call]) as lines, pytest.raises(Refused) as caught:
        gate.call("ListNamespaces")
    told = caught.value.metadata["request_id"]
    assert [line["request_id"] for line in of_call(lines, "ListNamespaces")] == [told, told]
    assert told


@pytest.mark.parametrize(
    ("method", "reason"), [("GetCapabilities", "OK"), ("GetStats", "POOL_EXHAUSTED")]
)
def test_a_call_is_one_debug_line(gate: Gate, method: str, reason: str) -> None:
    """A call logs one debug line with method, outcome, latency, request id and tenant only."""
    (line,) = gate.logged(method)
    assert (line["event"], line["log_level"]) == ("request_handled", "debug")
    assert (line["method"], line["reason"], line["tenant"]) == (METHOD + method, reason, "uid-7")
    assert line["latency_ms"] >= 0
    fields = {"event", "log_level", "latency_ms", "method", "reason", "request_id", "tenant"}
    assert set(line) == fields


@pytest.mark.parametrize("request_id", ["", "x" * 65, 'a"b', "a b"])
def test_a_request_id_that_could_harm_a_log_is_replaced(gate: Gate, request_id: str) -> None:
    """A call without a request id, or with an unsafe one, gets a random id."""
    gate.call("GetCapabilities", request_id=request_id)
    ((_, context),) = gate.servicer.calls
    assert isinstance(context["request_id"], str)
    assert len(context["request_id"]) == 16


def test_a_method_is_looked_up_once() -> None:
    """The rules of a method are found at its first call; an unknown method leaves nothing."""
    asked: list[str] = []
    known = grpc.unary_unary_rpc_method_handler(
        lambda *_: pb.GetStatsResponse(), pb.GetStatsRequest.FromString
    )

    def continuation(
        details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[pb.GetStatsRequest, pb.GetStatsResponse] | None":
        asked.append(details.method)
        return known if details.method.endswith("GetStats") else None

    interceptor = adapter_of(Credentials(), CallThreads(1, 64))
    for _ in range(2):
        assert interceptor.intercept_service(continuation, Details("GetStats")) is not None
    unknown = [interceptor.intercept_service(continuation, Details("Else")) for _ in range(2)]
    assert unknown == [None, None]
    assert asked == [METHOD + "GetStats", METHOD + "Else", METHOD + "Else"]


def test_a_stream_ends_as_the_contract_says(gate: Gate) -> None:
    """An error raised in the middle of a stream of answers becomes the call's status too."""
    stream = gate.stub.WatchEvents(
        pb.WatchEventsRequest(),
        timeout=30,
        metadata=(("authorization", f"Bearer {gate.credential}"),),
    )
    assert next(stream).sequence_number == 1
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    assert refusal_of(caught.value).reason == "POOL_EXHAUSTED"


def test_a_stream_is_admitted_like_any_call(gate: Gate) -> None:
    """A stream without credential is refused before its first answer."""
    with pytest.raises(grpc.RpcError) as caught:
        next(gate.stub.WatchEvents(pb.WatchEventsRequest(), timeout=30))
    assert refusal_of(caught.value).reason == "CREDENTIAL_REQUIRED"


def test_a_caller_is_looked_up_once(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its arrival to its answer a call's credential is looked up a single time."""
    asked: list[str] = []
    identify = gate.credentials.identify

    def counted(credential: str) -> Known:
        asked.append(credential)
        return identify(credential)

    monkeypatch.setattr(gate.credentials, "identify", counted)
    gate.call("GetCapabilities")
    assert asked == [gate.credential]
