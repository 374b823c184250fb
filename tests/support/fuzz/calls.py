"""Calls that nobody means, to every method of a server, and what they ended with."""

from collections import Counter, deque
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple, TypeAlias

import grpc
from google.protobuf import message_factory
from google.protobuf.message import Message
from google.rpc import status_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from fuzz.messages import Messages
from fuzz.reasons import UNKNOWN, reason_of
from kvstore.v1 import (
    lease_pb2,
    named_pin_pb2,
    prefix_cache_pb2,
    store_pb2,
)

CONTRACT = (lease_pb2, named_pin_pb2, prefix_cache_pb2, store_pb2)
# Not ours: their errors have codes of their own contracts, and no ErrorInfo.
OTHERS = (health_pb2, reflection_pb2)
# Calls under way at a time.
WINDOW = 64
# Seconds. What a call waits for an answer; longer than it takes with a full window.
PATIENCE = 30.0
DETAILS = "grpc-status-details-bin"
# What gRPC itself ends a call with, before or after our code: none of it is ours to explain.
OF_GRPC = (
    (grpc.StatusCode.UNIMPLEMENTED, "Method not found!"),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!"),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max"),
    (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"),
    (grpc.StatusCode.CANCELLED, ""),
)

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]


class Method(NamedTuple):
    """A method by its path, and the message that it is meant to be given."""

    path: str
    kind: type[Message]
    streams_requests: bool
    streams_responses: bool
    is_ours: bool


def methods() -> list[Method]:
    """Returns every method of every service that a server has."""
    return [
        Method(
            f"/{service.full_name}/{each.name}",
            message_factory.GetMessageClass(each.input_type),
            each.client_streaming,
            each.server_streaming,
            file in CONTRACT,
        )
        for file in (*CONTRACT, *OTHERS)
        for service in file.DESCRIPTOR.services_by_name.values()
        for each in service.methods
    ]


# What needs what others did before it comes far seldom, and is drawn so much more often.
LATE = {"InsertPrefix": 32.0, "MatchPrefix": 4.0, "AcquirePrefix": 4.0}


class Caller:
    """Makes calls with drawn requests, metadata and deadlines, many at a time.

    ``outcomes`` counts them by (path, what they ended with); ``faults`` has a line
    for each error without an ErrorInfo of ours, and for each that is a bug.
    """

    def __init__(self, channel: grpc.Channel, random: Random, messages: Messages) -> None:
        self.metadata: Metadata = ()
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.faults: list[str] = []
        self._random = random
        self._messages = messages
        self._methods = methods()
        self._weights = [_weight(each) for each in self._methods]
        self._stubs = {each.path: _stub(channel, each) for each in self._methods}
        unknown = Method("/kvstore.v1.StoreService/None", Message, *[False] * 3)
        self._stubs[unknown.path] = _stub(channel, unknown)
        self._unknown = unknown
        self._under_way: deque[tuple[Method, Any]] = deque()

    def call(self) -> None:
        """Begins a call, and see how the oldest ended if there are many under way."""
        (method,) = self._random.choices(self._methods, self._weights)
        raw = self._messages.request(method.kind)
        if self._random.random() < 0.002:
            method = self._unknown
        stub = self._stubs[method.path]
        # A stream without a deadline might have no end.
        timeout = PATIENCE if method.streams_responses else self._deadline()
        metadata = self._headers()
        if method.streams_requests:
            begun = stub(iter([raw]), timeout=timeout, metadata=metadata)
        elif method.streams_responses:
            begun = stub(raw, timeout=timeout, metadata=metadata)
        else:
            begun = stub.future(raw, timeout=timeout, metadata=metadata)
        self._under_way.append((method, begun))
        if len(self._under_way) >= WINDOW:
            self._see()

    def finish(self) -> None:
        """Sees how all calls ended."""
        while self._under_way:
            self._see()

    def _see(self) -> None:
        method, begun = self._under_way.popleft()
        if method.streams_responses:
            # Its first answer: a watch has no second one. What it ended with is looked at below.
            with suppress(grpc.RpcError):
                next(begun, None)
            begun.cancel()
        code = begun.code()
        if code is grpc.StatusCode.OK:
            self.outcomes[method.path, "OK"] += 1
            return
        reason, why = _reason(begun)
        if reason is None and (not method.is_ours or _of_grpc(begun)):
            reason = code.name
        elif reason is None or reason == "INTERNAL":
            self.faults.append(f"{method.path}: {code.name}: {begun.details()}: {why}")
        self.outcomes[method.path, reason or f"{code.name} unexplained"] += 1

    def _deadline(self) -> float | None:
        return self._random.choices((PATIENCE, None, 3600.0, 0.002), (96, 1, 1, 2))[0]

    def _headers(self) -> Metadata:
        """Returns the caller's metadata, now and then with something wrong in it."""
        if self._random.random() < 0.9:
            return self.metadata
        kept = [each for each in self.metadata if self._random.random() < 0.7]
        wrong: list[tuple[str, str | bytes]] = [
            (
                "authorization",
                self._random.choice(("", "Bearer", "Bearer x", "Basic eDp5", "x" * 999)),
            ),
            (
                "kvstore-lease-secret-bin",
                self._random.randbytes(self._random.choice((0, 1, 32, 65))),
            ),
            ("x-request-id", self._random.choice(("a", "a b", "<>", "x" * 999))),
            ("anything-bin", self._random.randbytes(40)),
        ]
        return (*kept, *self._random.sample(wrong, self._random.randrange(3)))


def _weight(method: Method) -> float:
    """Returns how often a method is drawn, beside others."""
    if method.path.endswith(("/RevokeLease", "/DeleteNamespace")):
        # Who revokes the lease, or deletes the namespace, ends what the other calls live on.
        return 0.02
    return LATE.get(method.path.rpartition("/")[2], 1.0)


def _stub(channel: grpc.Channel, method: Method) -> Any:  # noqa: ANN401  # one of three kinds
    if method.streams_requests:
        return channel.stream_stream(method.path, _as_it_is, _as_it_is)
    if method.streams_responses:
        return channel.unary_stream(method.path, _as_it_is, _as_it_is)
    return channel.unary_unary(method.path, _as_it_is, _as_it_is)


def _as_it_is(raw: bytes) -> bytes:
    return raw


def _of_grpc(ended: Any) -> bool:  # noqa: ANN401  # grpc's classes are untyped
    details = ended.details() or ""
    return any(ended.code() is code and text in details for code, text in OF_GRPC)


def _reason(ended: Any) -> tuple[str | None, str]:  # noqa: ANN401  # grpc's classes are untyped
    """Returns the reason of the one ErrorInfo that there has to be, or None and what is wrong."""
    values = [value for key, value in ended.trailing_metadata() or () if key == DETAILS]
    if len(values) != 1:
        return None, f"{len(values)} statuses"
    status = status_pb2.Status.FromString(values[0])
    if status.code != ended.code().value[0]:
        return None, f"the status says {status.code}"
    reason = reason_of(status.details)
    return (None, f"the details are {status.details}") if reason == UNKNOWN else (reason, "")
