"""Two tenants on a server, and calls in anybody's name, as permission_table.py has them."""

import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from kvstore.rpc.lane import METHODS as LANE_METHODS
from kvstore.rpc.lane import Party
from kvstore.rpc.pipeline import digest_of
from kvstore.v1 import named_pin_pb2, prefix_cache_pb2, store_pb2
from stores.permission_table import CACHED, NAMED_PIN, OK, PERMISSIONS, Names
from stores.rpc_world import Server, Worker, lane_call

OWNER_UID, OTHER_UID = 2, 3
LIMIT = 30.0
# What a lease of nobody's is called, and what no worker of these tests reserves.
NOTHING = Names(b"\xee" * 16, b"\xdd" * 16, 998, 999)
# Differ from call to call, or from store to store, whoever else is there.
PASSING = frozenset(
    {"age", "since_renewal", "uptime", "oldest_hold_age", "oldest_quarantine_age", "request_count"}
)
RANDOM = frozenset({"arena_id", "arena_ids", "extent_id", "extent_ids", "namespace_id"})


@dataclass(frozen=True)
class Outcome:
    """The end of a call as its caller sees it, without the names that the caller gave."""

    reason: str
    message: str
    metadata: tuple[tuple[str, str], ...]
    details: tuple[str, ...]
    trailing: tuple[str, ...]
    answer: Message | None


def methods() -> Iterator[MethodDescriptor]:
    """Yields the methods of the table, as the contract describes them."""
    pool = descriptor_pool.Default()  # type: ignore[no-untyped-call]
    for service in dict.fromkeys(name.split("/")[0] for name in PERMISSIONS):
        yield from pool.FindServiceByName(service).methods


def path_of(method: MethodDescriptor) -> str:
    """Returns a method's name in the table."""
    return f"{method.containing_service.full_name}/{method.name}"


METHODS = {path_of(each): each for each in methods()}


class Stage:
    """Two tenants with all that can be had, and calls in anybody's name."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.owner = server.worker(uid=OWNER_UID)
        self.owned = self._furnish(self.owner)
        self.other = server.worker(uid=OTHER_UID)
        self.other_namespace = self.other.open_namespace()

    def _furnish(self, worker: Worker) -> Names:
        namespace_id = worker.open_namespace()
        worker.publish(namespace_id, CACHED, 1)
        pb, caller = prefix_cache_pb2, worker.caller()
        sequence = pb.Sequence(tokens=CACHED + bytes(4))
        match = pb.MatchPrefixRequest(
            caller=caller, namespace_id=namespace_id, sequence=sequence, pin_id=7
        )
        worker.ask(worker.prefix_cache.MatchPrefix, match)
        reserve = pb.ReservePagesRequest(caller=caller, namespace_id=namespace_id)
        reserve.reservations.add(reservation_id=8, start_page=1, page_count=1)
        worker.ask(worker.prefix_cache.ReservePages, reserve)
        pin = named_pin_pb2.PinPrefixRequest(
            namespace_id=namespace_id, name=NAMED_PIN, tokens=CACHED
        )
        worker.ask(worker.named_pin.PinPrefix, pin)
        return Names(worker.lease_id, namespace_id, 7, 8)

    def call(self, path: str, names: Names, uid: int | None, secret: bytes) -> Outcome:
        """Returns how a call ends that names this, in the name of a uid's or of nobody's."""
        metadata: list[tuple[str, str | bytes]] = [("kvstore-lease-secret-bin", secret)]
        if uid is not None and self.server.lanes is not None and f"/{path}" in LANE_METHODS:
            return self._call_over_lane(path, names, uid, secret)
        if uid is not None:
            credential = self.server.credentials.issue(uid)
            metadata.append(("authorization", f"Bearer {credential}"))
        given = given_by(names)
        return outcome(self.server.channel, path, PERMISSIONS[path].build(names), metadata, given)

    def _call_over_lane(self, path: str, names: Names, uid: int, secret: bytes) -> Outcome:
        near, far = socket.socketpair()
        assert self.server.lanes is not None
        self.server.lanes.take(far, Party(uid, names.lease_id, digest_of(secret), 1))
        body = PERMISSIONS[path].build(names).SerializeToString()
        with near:
            answer, body = lane_call(near, LANE_METHODS.index(f"/{path}"), body)
        if answer.HasField("status"):
            return refused_with(answer.status, given_by(names))
        return answered(
            GetMessageClass(METHODS[path].output_type).FromString(body), given_by(names)
        )

    def owners_things(self) -> Message:
        """Returns what its tenant has, as it says itself, without the passing of time."""
        stats = self.owner.ask(self.owner.store.GetStats, store_pb2.GetStatsRequest())
        assert isinstance(stats, Message)
        return without(stats, PASSING)


def given_by(names: Names) -> set[str]:
    """Returns what a call gave, as an error may repeat it."""
    ids = {names.lease_id.hex(), names.namespace_id.hex()}
    return ids | {str(names.pin_id), str(names.reservation_id)}


def outcome(
    channel: grpc.Channel,
    path: str,
    request: Message,
    metadata: list[tuple[str, str | bytes]],
    given: set[str],
) -> Outcome:
    """Calls a method, whatever its kind, and returns how it ended."""
    method = METHODS[path]
    answer_type = GetMessageClass(method.output_type)
    kind = (
        ("stream" if method.client_streaming else "unary")
        + "_"
        + ("stream" if method.server_streaming else "unary")
    )
    send: Any = getattr(channel, kind)(
        f"/{path}", lambda message: message.SerializeToString(), answer_type.FromString
    )
    sent = iter([request]) if method.client_streaming else request
    try:
        call = send(sent, timeout=LIMIT, metadata=metadata)
        if not method.server_streaming:
            return answered(call, given)
        first = next(call)
        call.cancel()
        return Outcome(OK, "", (), (), (), first)
    except grpc.RpcError as error:
        return refused(error, given)


def answered(answer: Message, given: set[str]) -> Outcome:
    """Returns how a call ended that was answered; a step ends as its only operation."""
    if isinstance(answer, prefix_cache_pb2.RunStepResponse):
        [result] = answer.results
        if result.HasField("error"):
            return refused_with(result.error, given)
    return Outcome(OK, "", (), (), (), without(answer, PASSING))


def refused(error: Any, given: set[str]) -> Outcome:  # noqa: ANN401 - grpc's errors are calls, untyped
    """Returns how a call ended that was refused, without the names in ``given``."""
    status: Any = rpc_status.from_call(error)
    if status is None:
        return Outcome(error.code().name, str(error.details()), (), (), (), None)
    trailing = tuple(sorted(key for key, _ in error.trailing_metadata() or ()))
    return refused_with(status, given, trailing)


def refused_with(status: Any, given: set[str], trailing: tuple[str, ...] = ()) -> Outcome:  # noqa: ANN401 - untyped
    """Returns how a call ended with a status, without the names in ``given``."""
    info = error_details_pb2.ErrorInfo()
    (described,) = [each for each in status.details if each.Is(info.DESCRIPTOR)]
    described.Unpack(info)
    named = "|".join(re.escape(each) for each in given)
    message = re.sub(rf"=({named})\b", "=GIVEN", status.message)
    values = {key: "GIVEN" if value in given else value for key, value in info.metadata.items()}
    return Outcome(
        info.reason,
        f"{status.code}: {message}",
        tuple(sorted(values.items())),
        tuple(each.TypeName() for each in status.details),
        trailing,
        None,
    )


def without(message: Message, fields: frozenset[str]) -> Message:
    """Returns a message without some fields, however deep."""
    for field, value in list(message.ListFields()):
        if field.name in fields:
            message.ClearField(field.name)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            parts = value.values() if isinstance(value, Mapping) else value
            for each in parts if field.is_repeated else [value]:
                without(each, fields)
    return message
