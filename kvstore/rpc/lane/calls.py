"""The request path as lanes call it: the servicers' own methods, behind the same rules."""

from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from kvstore.core import Caller, Identity, Limits
from kvstore.errors import InvalidField
from kvstore.rpc.identity import Callers
from kvstore.rpc.lane.connection import Frame, HotLane
from kvstore.rpc.pipeline import (
    GIVING_BACK,
    NOT_OF_ITS_TYPE,
    Outcome,
    call_logger,
    require_deadline,
    require_size,
    size_limit_of,
    usable_request_id,
)
from kvstore.rpc.servicers.lease import LeaseServicer
from kvstore.rpc.servicers.prefix_cache import PrefixCacheServicer
from kvstore.rpc.wire import fields
from kvstore.service.clock import Clock
from kvstore.service.store import KVStore
from kvstore.service.tenancy.credentials import Credentials
from kvstore.v1 import prefix_cache_pb2
from kvstore.v1.attach_pb2 import LaneAnswer, LaneCall

# By path, in the order in which a lane's calls number them.
METHODS = (
    *(
        f"/kvstore.v1.PrefixCacheService/{name}"
        for name in (
            "MatchPrefix",
            "AcquirePrefix",
            "ReservePages",
            "InsertPrefix",
            "ReleasePins",
            "AbortReservation",
        )
    ),
    "/kvstore.v1.LeaseService/RenewLease",
)
MICROSECONDS = 1e-6
_new_tuple = tuple.__new__
SUCCEEDED = b""


class LaneContext(NamedTuple):
    """A call as its servicer and :class:`LaneCallers` see it: what its lane says.

    ``tokens`` came beside its message.
    """

    identity: Identity
    lease_secret: bytes
    remaining: float | None = None
    tokens: bytes | None = None

    def time_remaining(self) -> float | None:
        """Returns the seconds that were left as the call began."""
        return self.remaining


class LaneCallers(Callers):
    """Reads who calls from a call's lane, in the place of metadata.

    The contexts that it is given are each a :class:`LaneContext`.
    """

    def identity(self, context: grpc.ServicerContext) -> Identity:
        """Returns whose call it is."""
        lane: Any = context
        identity: Identity = lane.identity
        return identity

    def worker(self, context: grpc.ServicerContext, caller: prefix_cache_pb2.Caller) -> Caller:
        """Returns who calls in the request path, with the secret that opened the lane."""
        lease_id = caller.lease_id
        if len(lease_id) != fields.ID_BYTES:
            fields.random_id("lease_id", lease_id)
        lane: Any = context
        return _new_tuple(Caller, (lane.identity, lease_id, lane.lease_secret, caller.store_epoch))

    def member(self, context: grpc.ServicerContext, lease_id: bytes, epoch: int | None) -> Caller:
        """Returns who calls under a lease, with the secret that opened the lane."""
        lane: Any = context
        return Caller(
            lane.identity, fields.random_id("lease_id", lease_id), lane.lease_secret, epoch
        )

    def tokens(self, context: grpc.ServicerContext) -> bytes | None:
        """Returns the tokens that did not come in the message."""
        lane: Any = context
        tokens: bytes | None = lane.tokens
        return tokens


class _Method(NamedTuple):
    path: str
    call: Callable[[Any, Any], Message]
    parse: Callable[[bytes], Any]
    size_limit: str
    most_bytes: int
    always: bool
    has_sequence: bool


class LaneCalls:
    """Answers the calls of all lanes. Thread-safe."""

    def __init__(self, store: KVStore, credentials: Credentials, clock: Clock) -> None:
        self._clock = clock
        self._traffic = store.traffic
        self._limits = store.limits
        self._longest = store.limits.max_deadline
        self._log = call_logger()
        self._times = store.call_times.get("lane")
        callers = LaneCallers(credentials)
        servicers = PrefixCacheServicer(store, callers), LeaseServicer(store, callers)
        self._methods = [_method(path, servicers, store.limits) for path in METHODS]

    def answer(self, lane: HotLane, frame: Frame) -> tuple[bytes, bytes]:
        """Returns the answer's head and body to a call that came over a lane.

        ``lane`` says when it came, and whose it is. Raises :class:`InvalidField` for a
        head that is none.
        """
        try:
            call = LaneCall.FromString(frame.head)
        except DecodeError as error:
            raise InvalidField(field="head", why="not a LaneCall") from error
        known = call.method < len(METHODS)
        path = METHODS[call.method] if known else "unknown"
        identity = lane.identity
        request_id = usable_request_id(call.request_id) if call.request_id else ""
        outcome = Outcome(self._clock, self._log, path, request_id, identity.tenant, self._times)
        try:
            if not known:
                raise InvalidField(field="method", value=call.method, why="unknown")  # noqa: TRY301  # as what is called raises
            waited = self._clock() - lane.came_at
            remaining = call.timeout_us * MICROSECONDS - waited if call.timeout_us else None
            method = self._methods[call.method]
            tokens = frame.tokens if method.has_sequence and frame.tokens else None
            # Without a frame of Python's for each tuple of a call, here and on its way.
            context = _new_tuple(
                LaneContext, (identity, lane.party.lease_secret, remaining, tokens)
            )
            response = self._call(method, frame, context)
        except Exception as error:  # noqa: BLE001  # its answer says of it what may be said
            outcome.ended(error)
            return LaneAnswer(status=outcome.failure).SerializeToString(), b""
        outcome.ended()
        return SUCCEEDED, response

    def _call(self, method: _Method, frame: Frame, context: LaneContext) -> bytes:
        self._traffic.admit(context.identity.tenant, always=method.always)
        remaining = context.remaining
        if remaining is None or not 0 < remaining <= self._longest:
            require_deadline(remaining, self._longest)
        body = frame.whole_body if frame.tokens and not context.tokens else frame.body
        if len(body) > method.most_bytes or frame.tokens:
            require_size(frame.body_bytes, method.size_limit, self._limits)
        try:
            request = method.parse(body)
        except DecodeError as error:
            raise InvalidField(field="request", why=NOT_OF_ITS_TYPE) from error
        if context.tokens:
            request.sequence.SetInParent()
        return method.call(request, context).SerializeToString()


def _method(path: str, servicers: tuple[object, ...], limits: Limits) -> _Method:
    name = path.rpartition("/")[2]
    [call] = [getattr(each, name) for each in servicers if hasattr(each, name)]
    full_name = path.removeprefix("/").replace("/", ".")
    request = descriptor_pool.Default().FindMethodByName(full_name).input_type
    parse = GetMessageClass(request).FromString
    # Whose method asks for tokens that came beside the message.
    has_sequence = name in {"MatchPrefix", "AcquirePrefix"}
    size_limit = size_limit_of(path)
    most_bytes: int = getattr(limits, size_limit)
    return _Method(path, call, parse, size_limit, most_bytes, path in GIVING_BACK, has_sequence)
