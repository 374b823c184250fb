"""The one way of a call, whichever transport brought it: gRPC or a lane.

:meth:`Pipeline.answer` takes a call through its steps: its caller, the tenant's rate, the deadline,
the request's size, its parsing, the servicer, and the outcome. A transport makes the
:class:`Call` once, and adapts its own form of a call to :class:`Incoming`.
"""

import logging
import random
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

import grpc
import structlog
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import status_pb2

from kvstore import background, tracing
from kvstore.core import Caller, Identity, Limits
from kvstore.errors import InvalidField, KVStoreError, LimitExceeded
from kvstore.logs import CALL
from kvstore.rpc.wire import fields, status
from kvstore.rpc.wire.operation_count import require_operation_count
from kvstore.service.call_durations import CallTimes
from kvstore.service.clock import Clock
from kvstore.service.serving_turn import let_others_serve
from kvstore.service.store import KVStore
from kvstore.service.tenancy.rate_limit import Traffic

Logger: TypeAlias = structlog.typing.FilteringBoundLogger

# The field that names a lease's secret in errors, and its key in gRPC's metadata.
LEASE_SECRET = "kvstore-lease-secret-bin"  # noqa: S105 - the name of the metadata key, not a secret
MIN_SECRET_BYTES = 16
MAX_SECRET_BYTES = 64
# A client's own id is accepted if it can do no harm in a log.
REQUEST_ID_FORM = re.compile(r"[A-Za-z0-9._:/-]{1,64}")
# Calls that free something, or keep a lease that holds something, are not refused for their rate:
# a refusal would only make the store hold more.
GIVING_BACK = frozenset(
    {
        "/kvstore.v1.LeaseService/RenewLease",
        "/kvstore.v1.LeaseService/RevokeLease",
        "/kvstore.v1.NamedPinService/UnpinPrefix",
        "/kvstore.v1.PrefixCacheService/AbortReservation",
        "/kvstore.v1.PrefixCacheService/ReleasePins",
    }
)
# The service of the calls that an engine's requests wait for.
REQUEST_PATH = "/kvstore.v1.PrefixCacheService/"
# A step of more operations lets other calls be served meanwhile.
FEW_OPERATIONS = 4
# The messages in requests that have to be there.
REQUIRED = frozenset({"caller", "identity", "layout", "sequence"})
# The methods whose callers may have no lease.
WITHOUT_LEASE = frozenset({"/kvstore.v1.PrefixCacheService/PrefetchPrefix"})
# The methods whose requests may leave their id empty.
WITHOUT_ID = frozenset(
    {"/kvstore.v1.NamedPinService/ListPins", "/kvstore.v1.StoreService/WatchEvents"}
)
# The reason for a request that cannot be parsed.
NOT_OF_ITS_TYPE = "not a message of its type"
# gRPC sends a timeout in few digits, rounded up: 60 s arrive as 60.1 s.
DEADLINE_ROUNDING = 1.02


class Stream(Protocol):
    """The answers of a call that has many. Any thread may use it, one at a time."""

    def send(self, message: Message) -> None:
        """Sends an answer. Waits until the client has room for more."""
        ...

    def on_end(self, action: Callable[[], None]) -> None:
        """Calls ``action`` when the call ends, or at once if it has ended."""
        ...

    def end(self, error: KVStoreError | None = None) -> None:
        """Ends the call after the answers that were sent, with an error if there is one."""
        ...


class Call(NamedTuple):
    """A call as its servicer sees it.

    ``lease_secret`` is the secret that came with it. A lane's calls have ``secret_digest`` instead,
    of the secret that opened the lane. ``remaining`` is the time to its deadline in seconds, None
    without one. ``tokens`` are those of its sequence if they came beside the message. ``stream``
    takes the answers of a method that has many, and ``operations`` answers the parts of a step.
    """

    who: Identity
    secret_digest: bytes | None = None
    remaining: float | None = None
    tokens: bytes | None = None
    stream: Stream | None = None
    lease_secret: bytes | None = None
    operations: "Operations | None" = None

    def caller(self, lease_id: bytes, epoch: int | None) -> Caller:
        """Returns who calls under a lease, whose secret MUST come with the call.

        Raises :class:`InvalidField` for an id or a secret that can be none. The store checks
        that they are a lease's.
        """
        digest = self.secret_digest
        if digest is None:
            if self.lease_secret is None:
                raise InvalidField(field=LEASE_SECRET, why="missing")
            digest = digest_of(self.lease_secret)
        if len(lease_id) != fields.ID_BYTES:
            fields.random_id("lease_id", lease_id)
        return Caller(self.who, lease_id, digest, epoch)

    def revoker(self, lease_id: bytes, epoch: int | None) -> Caller:
        """Returns who ends a lease; an admin does so without its secret.

        Without one the digest is empty, which no secret's is.
        """
        if self.lease_secret is not None or self.secret_digest is not None:
            return self.caller(lease_id, epoch)
        return Caller(self.who, fields.random_id("lease_id", lease_id), b"", epoch)


def digest_of(secret: bytes, field: str = LEASE_SECRET) -> bytes:
    """Returns the digest by which the core knows a lease's secret: SHA-256, 32 bytes.

    Raises InvalidField for ``field`` if the length can be no secret's.
    """
    if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        fields.checked_bytes(field, secret, least=MIN_SECRET_BYTES, most=MAX_SECRET_BYTES)
    return sha256(secret).digest()


class Method(NamedTuple):
    """A method of the contract, and the rules of its calls.

    ``longest`` bounds the deadline in seconds, ``most_bytes`` the request; ``size_limit`` is the
    name of that limit. A method that is ``giving_back`` is not refused for its rate. A request has
    to have the messages of ``required``, and ids of 128 bits in the fields of ``ids``. A step's
    method ``has_operations``, and a step gives its own caller to methods that have one
    (``has_caller``). Work in the background gives way to methods ``on_request_path``.
    """

    path: str
    serve: Callable[[Any, Call], Message]
    parse: Callable[[bytes], Any]
    size_limit: str
    most_bytes: int
    longest: float
    giving_back: bool
    has_stream: bool
    required: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    has_operations: bool = False
    on_request_path: bool = False
    has_caller: bool = False


def method_of(path: str, serve: Callable[[Any, Call], Message], limits: Limits) -> Method:
    """Returns a method by its path, as in ``/kvstore.v1.LeaseService/GrantLease``."""
    name = path.removeprefix("/").replace("/", ".")
    described: MethodDescriptor = descriptor_pool.Default().FindMethodByName(name)
    size_limit = size_limit_of(path)
    parts = described.input_type.fields
    parse: Callable[[bytes], Any] = GetMessageClass(described.input_type).FromString
    names = described.input_type.fields_by_name
    has_operations = "operations" in names
    required = REQUIRED - {"caller"} if path in WITHOUT_LEASE else REQUIRED
    return Method(
        path,
        serve,
        partial(_parse_step, parse, limits) if has_operations else parse,
        size_limit,
        getattr(limits, size_limit),
        # A call that changes something must not live longer than its tombstones.
        limits.max_watch if described.server_streaming else limits.max_deadline,
        path in GIVING_BACK,
        described.server_streaming,
        tuple(each.name for each in parts if each.name in required),
        () if path in WITHOUT_ID else tuple(each.name for each in parts if _is_id(each)),
        has_operations,
        path.startswith(REQUEST_PATH),
        "caller" in names,
    )


def _parse_step(parse: Callable[[bytes], Any], limits: Limits, body: bytes) -> Any:  # noqa: ANN401
    require_operation_count(body, limits)
    return parse(body)


def _is_id(field: FieldDescriptor) -> bool:
    return field.type == FieldDescriptor.TYPE_BYTES and field.name.endswith("_id")


def size_limit_of(path: str) -> str:
    """Returns the name of the limit on a method's requests.

    Requests with token ids may be as long as any message.
    """
    name = path.removeprefix("/").replace("/", ".")
    request = descriptor_pool.Default().FindMethodByName(name).input_type
    return "max_message_bytes" if _has_tokens(request) else "max_short_message_bytes"


def _has_tokens(message: Descriptor) -> bool:
    inner = (each.message_type for each in message.fields if each.message_type is not None)
    return "tokens" in message.fields_by_name or any(map(_has_tokens, inner))


class Incoming(Protocol):
    """A call as its transport has it. The pipeline reads each part once, in this order."""

    @property
    def call(self) -> Call:
        """The call. Raises CredentialRequired if nobody known makes it."""
        ...

    @property
    def body(self) -> bytes:
        """The bytes of the request; waits for them if they are still to come.

        Raises a KVStoreError to refuse the call, or ``grpc.RpcError`` if it ends before.
        """
        ...

    @property
    def remaining(self) -> float | None:
        """The time to its deadline in seconds, now that its request is there."""
        ...


def _charge_nothing(tenant: str, turns: int) -> None:
    del tenant, turns


class Pipeline:
    """Answers the calls of one transport, whose times are those of ``clock``. Thread-safe.

    ``traffic`` counts the requests of each tenant. ``times``, if any, has the time of each call,
    except of those with a stream of answers, which last as long as a client listens. ``charge`` is
    called with the tenant and the number of operations of each step.
    """

    def __init__(
        self,
        store: KVStore,
        clock: Clock,
        times: CallTimes | None = None,
        charge: Callable[[str, int], None] = _charge_nothing,
    ) -> None:
        self.limits = store.limits
        self.traffic: Traffic = store.traffic
        self.clock = clock
        self._times = times
        self._charge = charge
        # One for all calls: to find out for each that nothing is logged takes as long as to log it.
        self._log: Logger = structlog.get_logger().bind()

    def answer(
        self, method: Method, request_id: str, incoming: Incoming
    ) -> tuple[bytes, status_pb2.Status | None]:
        """Makes a call and returns its answer's bytes, or the status of its failure.

        ``request_id`` is the client's, or empty. Only ``grpc.RpcError`` goes through: then the call
        has ended before its request came, and gRPC knows. A call whose deadline passed while it
        waited for a thread is refused, since nobody waits for its answer.
        """
        if method.on_request_path:
            background.note_call()
        outcome = self.begin(method, request_id)
        try:
            call = incoming.call
            outcome.tenant = call.who.tenant
            self.traffic.admit(call.who.tenant, always=method.giving_back)
            if call.remaining is None or not 0 < call.remaining <= method.longest:
                require_deadline(call.remaining, method.longest)
            body = incoming.body
            if len(body) > method.most_bytes:
                refuse_size(len(body), method)
            request = method.parse(body)
            require_fields(request, method)
            # The request may have taken long to come, and nobody waits beyond the deadline.
            remaining = incoming.remaining
            if remaining != call.remaining:
                call = call._replace(remaining=remaining)
            if method.has_operations:
                self._charge(call.who.tenant, len(request.operations))
                if len(request.operations) > FEW_OPERATIONS:
                    let_others_serve()
                call = call._replace(operations=Operations(self, outcome, call, request))
            response = method.serve(request, call).SerializeToString()
        except grpc.RpcError as error:
            outcome.abandoned(error)
            raise
        except DecodeError:
            return b"", outcome.ended(InvalidField(field="request", why=NOT_OF_ITS_TYPE))
        except Exception as error:  # noqa: BLE001  # its status says what may be said
            return b"", outcome.ended(error)
        outcome.ended()
        return response, None

    def begin(self, method: Method, request_id: str, step: "Outcome | None" = None) -> "Outcome":
        """Returns the outcome of a call, or of an operation of ``step``, that begins now."""
        times = None if method.has_stream else self._times
        return Outcome(self.clock, self._log, method, request_id, times, step)


class Operations:
    """The operations of a step, each answered as a call of its own would be. One thread uses it.

    Each has its own outcome, so it is counted, timed, logged and traced as its method. The step's
    own admission by the rate of requests stands for its first operation.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        step: "Outcome",
        call: Call,
        request: Any,  # noqa: ANN401  # of any type that has operations
    ) -> None:
        self._pipeline = pipeline
        self._step = step
        # No operation waits for tier 3.
        self._call = call._replace(remaining=0.0, operations=None)
        self._caller = request.caller
        self._namespace_id: bytes = request.namespace_id
        self._most_bytes = pipeline.limits.max_message_bytes // 2
        self._ends_at = pipeline.clock() + (call.remaining or 0.0)
        self._answer_bytes = 0
        self._is_first = True

    def answer(
        self,
        method: Method,
        request: Any,  # noqa: ANN401  # of any type that has a caller
    ) -> tuple[Message | None, status_pb2.Status | None]:
        """Makes an operation and returns its answer, or the status of its failure."""
        outcome = self._pipeline.begin(method, "", self._step)
        try:
            self._require_room(method, outcome)
            self._complete(request, method)
            require_fields(request, method)
            answer = method.serve(request, self._call)
            self._answer_bytes += answer.ByteSize()
        except Exception as error:  # noqa: BLE001  # its status says what may be said
            return None, outcome.ended(error)
        else:
            outcome.ended()
            return answer, None
        finally:
            self._is_first = False
            CALL.set(self._step)

    def _require_room(self, method: Method, outcome: "Outcome") -> None:
        """Raises the refusals that need no look at the request."""
        if not self._is_first:
            self._pipeline.traffic.admit(outcome.tenant, always=method.giving_back)
        if outcome.began >= self._ends_at:
            raise InvalidField(field="deadline", value="passed", why="the operation had not begun")
        if self._answer_bytes > self._most_bytes:
            maximum = self._pipeline.limits.max_message_bytes
            raise LimitExceeded(
                limit="max_message_bytes", maximum=maximum, value=self._answer_bytes
            )

    def _complete(self, request: Any, method: Method) -> None:  # noqa: ANN401  # as answer
        """Gives a request the caller and the namespace of the step."""
        if not method.has_caller:
            return
        if request.HasField("caller"):
            raise InvalidField(field="caller", why="the step has one for all operations")
        request.caller.CopyFrom(self._caller)
        if method.ids:
            if request.namespace_id:
                raise InvalidField(field="namespace_id", why="the step has one for all operations")
            request.namespace_id = self._namespace_id


def unknown_method(field: str, value: object, limits: Limits) -> Method:
    """Returns what stands for a method that is unknown, and refuses its calls by this field."""

    def refuse(request: bytes, call: Call) -> NoReturn:
        del request, call
        raise InvalidField(field=field, value=value, why="unknown")

    return Method(
        "unknown",
        refuse,
        bytes,
        "max_message_bytes",
        limits.max_message_bytes,
        limits.max_deadline,
        giving_back=False,
        has_stream=False,
    )


def require_fields(request: Message, method: Method) -> None:
    """Raises InvalidField for a request without a message that it needs, or with a malformed id."""
    for name in method.required:
        if not request.HasField(name):
            raise InvalidField(field=name, why="missing")
    for name in method.ids:
        value = getattr(request, name)
        if len(value) != fields.ID_BYTES:
            fields.random_id(name, value)


def refuse_size(size: int, method: Method) -> NoReturn:
    """Raises LimitExceeded for a request of more bytes than the method's limit."""
    raise LimitExceeded(limit=method.size_limit, maximum=method.most_bytes, value=size)


def require_deadline(remaining: float | None, longest: float) -> None:
    """Raises InvalidField for a deadline that is missing, above ``longest`` seconds or passed."""
    if remaining is None or remaining > longest * DEADLINE_ROUNDING:
        maximum = f"{longest:g} s"
        raise InvalidField(field="deadline", why="missing or too long", maximum=maximum)
    if remaining <= 0:
        raise InvalidField(field="deadline", value="passed", why="the call had not begun")


class Outcome:
    """One call from now until it :meth:`ended`, for the log, the times and the trace.

    An error of ours becomes its status. Anything else is a bug: it becomes INTERNAL and is logged
    with its traceback. Each call is one line at debug, which has no content of the request. If
    calls are traced it is a span of the one that its request id names, except for a stream.
    ``tenant`` is empty until it is known. ``began`` is a time of the clock.
    """

    __slots__ = (
        *("_clock", "_log", "_method", "_request_id", "_span", "_times"),
        *("began", "tenant"),
    )

    def __init__(
        self,
        clock: Clock,
        log: Logger,
        method: Method,
        request_id: str,
        times: CallTimes | None,
        step: "Outcome | None" = None,
    ) -> None:
        self._clock = clock
        self._log = log
        self._method = method.path
        if step is None:
            usable = request_id and REQUEST_ID_FORM.fullmatch(request_id)
            self._request_id = request_id if usable else ""
            self.tenant = ""
        else:
            # All operations of a step have its request id.
            self._request_id, self.tenant = step.request_id, step.tenant
        self._times = times
        self._span: AbstractContextManager[Any] | None = None
        self.began = clock()
        if tracing.ON and not method.has_stream:
            self._span = tracing.call_span(method.path.rpartition("/")[2], self.request_id)
            self._span.__enter__()
        # The next call of this thread takes its place.
        CALL.set(self)

    @property
    def request_id(self) -> str:
        """The client's id of the call, or a random one, made when it is first needed."""
        if not self._request_id:
            self._request_id = f"{random.getrandbits(64):016x}"
        return self._request_id

    def facts(self) -> dict[str, str]:
        """Returns the fields that each line of the call has."""
        return {"request_id": self.request_id, "method": self._method, "tenant": self.tenant}

    def ended(self, error: Exception | None = None) -> status_pb2.Status | None:
        """Notes the end of the call, once. Returns the status of the error that it raised."""
        reason, failure = "OK", None
        if self._span is not None:
            self._leave_span(error)
        if error is not None:
            if isinstance(error, KVStoreError):
                reason, failure = error.reason(), status.to_status(error)
            else:
                self._log.error("request_failed", exc_info=error)
                reason, failure = "INTERNAL", status.internal_status(self.request_id)
        seconds = self._clock() - self.began
        if self._times is not None:
            self._times.note(self._method, reason, seconds)
        if self._log.is_enabled_for(logging.DEBUG):
            latency_ms = round(seconds * 1e3, 3)
            self._log.debug("request_handled", reason=reason, latency_ms=latency_ms)
        return failure

    def abandoned(self, error: grpc.RpcError) -> None:
        """Notes that the client left, or its deadline passed, before the request came."""
        self._leave_span(error)
        self._log.debug("request_never_came")

    def _leave_span(self, error: BaseException | None) -> None:
        if self._span is not None:
            traceback = None if error is None else error.__traceback__
            self._span.__exit__(None if error is None else type(error), error, traceback)
