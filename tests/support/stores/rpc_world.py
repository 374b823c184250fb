"""A server of the real thing, and workers that call it over its socket."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from kvstore.core.values.requests import Caller
from kvstore.rpc.health.watchdog import Health
from kvstore.rpc.lane import LENGTHS, METHODS, HotLanes, Party
from kvstore.rpc.pipeline import digest_of
from kvstore.service.store import KVStore
from kvstore.service.tenancy.credentials import Credentials
from kvstore.v1 import (
    attach_pb2,
    lease_pb2,
    lease_pb2_grpc,
    named_pin_pb2_grpc,
    prefix_cache_pb2,
    prefix_cache_pb2_grpc,
    store_pb2,
    store_pb2_grpc,
    types_pb2,
)

EPOCH = 81985529216486895
PAGE_TOKENS = 4
PAGE_BYTES = 64
ADMIN_UID = 1
VERSION = "1.2.3"


@dataclass
class Refused(Exception):
    """A call ended with a status of the store's."""

    code: grpc.StatusCode
    reason: str
    metadata: dict[str, str]
    detail_types: list[str]


def tokens(*numbers: int) -> bytes:
    """Returns token ids as they travel."""
    return b"".join(number.to_bytes(4, "little") for number in numbers)


@dataclass
class Server:
    """A server, the store behind it, and a channel to it."""

    store: KVStore
    credentials: Credentials
    health: Health
    channel: grpc.Channel
    path: Path
    threads: ThreadPoolExecutor
    lease_numbers: Iterator[int] = field(default_factory=lambda: count(1))
    # With some, whatever they take is called over them, and the rest over gRPC.
    lanes: HotLanes | None = None

    def call(self, method: Any, request: Any, *metadata: tuple[str, str | bytes]) -> Any:  # noqa: ANN401 - stubs are untyped
        """Returns a call's answer; raises :class:`Refused` with what the ErrorInfo says."""
        try:
            return method(request, timeout=30, metadata=metadata)
        except grpc.RpcError as error:
            raise refusal_of(error) from error

    def worker(self, *, uid: int = 2) -> "Worker":
        """Returns a worker whose lease has an attached process."""
        number = next(self.lease_numbers)
        worker = Worker(
            self, uid, number, number.to_bytes(16), f"a secret of worker {number:4}".encode()
        )
        worker.grant()
        identity, digest = self.credentials.identity_of(uid), digest_of(worker.secret)
        caller = Caller(identity, worker.lease_id, digest, None)
        self.store.bind(caller, process_id=number, pid=number, uid=uid)
        return worker


@dataclass
class Worker:
    """A lease of a server, and the metadata of its calls."""

    server: Server
    uid: int
    number: int
    lease_id: bytes
    secret: bytes
    epoch: int = EPOCH

    def __post_init__(self) -> None:
        channel = self.server.channel
        self.lease = lease_pb2_grpc.LeaseServiceStub(channel)
        self.prefix_cache = prefix_cache_pb2_grpc.PrefixCacheServiceStub(channel)
        self.store = store_pb2_grpc.StoreServiceStub(channel)
        self.named_pin = named_pin_pb2_grpc.NamedPinServiceStub(channel)

    def ask(self, method: Any, request: Any) -> Any:  # noqa: ANN401 - stubs are untyped
        """Returns a call's answer; raises :class:`Refused`."""
        path = getattr(method, "_method", b"").decode()  # of a stub; there is no public way
        if self.server.lanes is not None and path in METHODS:
            return self._ask_over_lane(self.server.lanes, path, request)
        authorization = f"Bearer {self.server.credentials.issue(self.uid)}"
        metadata = (("authorization", authorization), ("kvstore-lease-secret-bin", self.secret))
        return self.server.call(method, request, *metadata)

    def _ask_over_lane(self, lanes: HotLanes, path: str, request: Any) -> Any:  # noqa: ANN401
        """Opens a lane for one call."""
        near, far = socket.socketpair()
        lanes.take(far, party_of(self))
        with near:
            answer, body = lane_call(near, METHODS.index(path), request.SerializeToString())
        if answer.HasField("status"):
            raise refusal_of_status(answer.status)
        name = path.removeprefix("/").replace("/", ".")
        output = descriptor_pool.Default().FindMethodByName(name).output_type
        return GetMessageClass(output).FromString(body)

    def caller(self) -> prefix_cache_pb2.Caller:
        """Returns the message that names this worker."""
        return prefix_cache_pb2.Caller(lease_id=self.lease_id, store_epoch=self.epoch)

    def grant(self) -> lease_pb2.GrantLeaseResponse:
        """Grants the lease."""
        request = lease_pb2.GrantLeaseRequest(lease_id=self.lease_id, display_name="worker")
        answer = self.ask(self.lease.GrantLease, request)
        assert isinstance(answer, lease_pb2.GrantLeaseResponse)
        return answer

    def open_request(self) -> store_pb2.OpenNamespaceRequest:
        """Returns a request for the namespace that all workers of a tenant share."""
        return store_pb2.OpenNamespaceRequest(
            lease_id=self.lease_id,
            store_epoch=self.epoch,
            identity=types_pb2.NamespaceIdentity(model_digest=b"a model", salt=b"a salt"),
            layout=types_pb2.PageLayout(
                page_tokens=PAGE_TOKENS,
                page_bytes=PAGE_BYTES,
                opaque=types_pb2.OpaqueLayout(fingerprint=b"a layout", divides_by_token=True),
            ),
        )

    def open_namespace(self) -> bytes:
        """Opens the namespace, map its extents, and returns its id."""
        answer = self.ask(self.store.OpenNamespace, self.open_request())
        self.server.store.acknowledge(self.number, list(answer.extent_ids))
        namespace_id: bytes = answer.namespace_id
        return namespace_id

    def publish(self, namespace_id: bytes, token_bytes: bytes, reservation_id: int) -> None:
        """Reserves and insert the whole pages that the tokens are."""
        self.reserve(namespace_id, reservation_id, len(token_bytes) // 4 // PAGE_TOKENS)
        self.insert(token_bytes, reservation_id)

    def reserve(self, namespace_id: bytes, reservation_id: int, page_count: int) -> None:
        """Reserves slots for so many pages."""
        pb = prefix_cache_pb2
        request = pb.ReservePagesRequest(caller=self.caller(), namespace_id=namespace_id)
        request.reservations.add(reservation_id=reservation_id, page_count=page_count)
        self.ask(self.prefix_cache.ReservePages, request)

    def insert(
        self, token_bytes: bytes, reservation_id: int
    ) -> prefix_cache_pb2.InsertPrefixResponse:
        """Inserts the whole pages that the tokens are."""
        pb = prefix_cache_pb2
        request = pb.InsertPrefixRequest(
            caller=self.caller(),
            reservation_id=reservation_id,
            sequence=pb.Sequence(tokens=token_bytes),
        )
        answer: pb.InsertPrefixResponse = self.ask(self.prefix_cache.InsertPrefix, request)
        return answer

    def acquire(
        self,
        namespace_id: bytes,
        token_bytes: bytes,
        *,
        total_page_count: int = 4,
        **fields: Any,  # noqa: ANN401  # a message's
    ) -> prefix_cache_pb2.AcquirePrefixResponse:
        """Matches the tokens under pin 1, and reserves the rest under reservation 2."""
        pb = prefix_cache_pb2
        request = pb.AcquirePrefixRequest(
            caller=self.caller(),
            namespace_id=namespace_id,
            sequence=pb.Sequence(tokens=token_bytes),
            total_page_count=total_page_count,
            **({"pin_id": 1, "reservation_id": 2} | fields),
        )
        answer: pb.AcquirePrefixResponse = self.ask(self.prefix_cache.AcquirePrefix, request)
        return answer


# Opens a lane of a worker, and gives the client's end.
OpenLane = Callable[[Worker], socket.socket]


def watch(
    worker: Worker,
    *,
    namespace_id: bytes = b"",
    history: int = store_pb2.WatchEventsRequest.HISTORY_UNSPECIFIED,
    batches: bool = False,
    timeout: float = 30.0,
) -> Any:  # noqa: ANN401 - gRPC's call and iterator in one
    """Watches what happens: the call, after its first answer; raises :class:`Refused`."""
    authorization = f"Bearer {worker.server.credentials.issue(worker.uid)}"
    request = store_pb2.WatchEventsRequest(
        namespace_id=namespace_id,
        history=history,  # type: ignore[arg-type]  # any number
        batches=batches,
    )
    call = worker.store.WatchEvents(
        request, timeout=timeout, metadata=(("authorization", authorization),)
    )
    try:
        first = next(call)
    except grpc.RpcError as error:
        raise refusal_of(error) from error
    assert first.began.store_epoch == EPOCH
    assert first.sequence_number == 0
    return call


def party_of(worker: Worker) -> Party:
    """Returns whose lanes a worker's are."""
    return Party(worker.uid, worker.lease_id, digest_of(worker.secret), worker.number)


def nothing(worker: Worker) -> bytes:
    """Returns a request that asks for nothing."""
    return prefix_cache_pb2.ReleasePinsRequest(caller=worker.caller()).SerializeToString()


def reason(answer: attach_pb2.LaneAnswer) -> str:
    """Returns why a call was refused, or OK."""
    return refusal_of_status(answer.status).reason if answer.HasField("status") else "OK"


def lane_frame(method: int, body: bytes, *, timeout_us: int = 30_000_000) -> bytes:
    """Returns a call's bytes on a lane."""
    head = attach_pb2.LaneCall(method=method, timeout_us=timeout_us).SerializeToString()
    return LENGTHS.pack(len(head), len(body)) + head + body


def lane_call(
    lane: socket.socket, method: int, body: bytes, *, timeout_us: int = 30_000_000
) -> tuple[attach_pb2.LaneAnswer, bytes]:
    """Make a call over a lane and return the answer's head and body; raises EOFError at its end."""
    lane.sendall(lane_frame(method, body, timeout_us=timeout_us))
    return lane_answer(lane)


def lane_answer(lane: socket.socket) -> tuple[attach_pb2.LaneAnswer, bytes]:
    """Returns the next answer of a lane; raises EOFError at its end."""
    lane.settimeout(30)

    def receive(size: int) -> bytes:
        received = b""
        while len(received) < size:
            data = lane.recv(size - len(received))
            if not data:
                raise EOFError
            received += data
        return received

    head_bytes, body_bytes = LENGTHS.unpack(receive(LENGTHS.size))
    return attach_pb2.LaneAnswer.FromString(receive(head_bytes)), receive(body_bytes)


def refusal_of(error: grpc.RpcError) -> Refused:
    """Returns what the status of a call says."""
    assert isinstance(error, grpc.Call)
    sent = rpc_status.from_call(error)
    assert sent is not None, error
    assert error.code().value[0] == sent.code
    return refusal_of_status(sent)


def refusal_of_status(sent: status_pb2.Status) -> Refused:
    """Returns what a status says, which has to have exactly one ErrorInfo."""
    infos = []
    for detail in sent.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            infos.append(info)
    (info,) = infos
    assert info.domain == "kvstore"
    types = [detail.TypeName() for detail in sent.details]
    [code] = [each for each in grpc.StatusCode if each.value[0] == sent.code]
    return Refused(code, info.reason, dict(info.metadata), types)
