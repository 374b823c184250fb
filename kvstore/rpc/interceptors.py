"""What every call passes on its way to a servicer, outermost first.

``Outcomes`` gives the call its request id, turns whatever was raised into a
status, and logs one line. ``Admission`` refuses a call without credential or
deadline, and only then waits for the request: to gRPC the requests are streams,
for which it does not wait itself, in a thread that a call may have for ever.
"""

import re
import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection
from structlog.contextvars import bind_contextvars

from kvstore.core.limits import Limits
from kvstore.errors import InvalidField, KVStoreError
from kvstore.rpc import status
from kvstore.rpc.identity import Callers
from kvstore.rpc.quiet import one_request, quiet
from kvstore.rpc.request_size import require_size, size_limit_of
from kvstore.service.clock import Clock
from kvstore.service.traffic import Traffic

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

REQUEST_ID = "x-request-id"
# A client's own id is taken if it can do no harm in a log.
REQUEST_ID_FORM = re.compile(r"[A-Za-z0-9._:/-]{1,64}")
# Open to whoever reaches the socket, without deadline: probes, and tools that ask for descriptors.
EXEMPT = (f"/{health.SERVICE_NAME}/", f"/{reflection.SERVICE_NAME}/")
# What gives something back, or keeps a lease that holds something, is not refused for its
# rate: refusing it would only make the store hold more.
GIVING_BACK = frozenset(
    {
        "/kvstore.v1.LeaseService/RenewLease",
        "/kvstore.v1.LeaseService/RevokeLease",
        "/kvstore.v1.NamedPinService/UnpinPrefix",
        "/kvstore.v1.PrefixCacheService/AbortReservation",
        "/kvstore.v1.PrefixCacheService/ReleasePins",
    }
)
# gRPC sends a timeout in few digits, rounded up: 60 s come as 60.1 s.
DEADLINE_ROUNDING = 1.02

Request = TypeVar("Request")
Response = TypeVar("Response")
# What intercept_service is given and answers. grpc's classes are generic for type checkers alone.
Handler: TypeAlias = "grpc.RpcMethodHandler[Request, Response] | None"
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Handler[Request, Response]]"


def request_id_of(context: grpc.ServicerContext) -> str:
    """Return the id that the client gave the call, or a new random one."""
    for key, value in context.invocation_metadata():
        if key == REQUEST_ID and isinstance(value, str) and REQUEST_ID_FORM.fullmatch(value):
            return value
    return secrets.token_hex(8)


class _MethodInterceptor(grpc.ServerInterceptor):
    """Wraps each method of one server, once.

    gRPC asks again for every call, on the one thread that all calls pass, and the
    answer is always the same.
    """

    def __init__(self) -> None:
        self._wrapped: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def intercept_service(
        self,
        continuation: "Continuation[Request, Response]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler[Request, Response]":
        """Wrap the method, unless it is exempt or unknown."""
        method = handler_call_details.method
        wrapped = self._wrapped.get(method)
        if wrapped is not None:
            return wrapped
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        if method.startswith(EXEMPT):
            return self._wrapped.setdefault(method, quiet(handler))
        return self._wrapped.setdefault(method, self._wrap(method, handler))

    @abstractmethod
    def _wrap(
        self, method: str, handler: "grpc.RpcMethodHandler[Request, Response]"
    ) -> "grpc.RpcMethodHandler[Request, Response]":
        """Return the handler that takes the method's calls from now on."""


class Outcomes(_MethodInterceptor):
    """Ends every call as the contract says, whatever happened in it.

    An error of ours becomes its status; anything else is a bug, becomes INTERNAL
    and is logged with its traceback. One line a call at debug, never a request's
    content.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def _wrap(
        self, method: str, handler: "grpc.RpcMethodHandler[Request, Response]"
    ) -> "grpc.RpcMethodHandler[Request, Response]":
        if handler.stream_stream is not None:
            stream = handler.stream_stream

            def stream_outcome(
                requests: Iterator[Request], context: grpc.ServicerContext
            ) -> Iterator[Response]:
                with self._outcome(method, context):
                    yield from stream(requests, context)

            return grpc.stream_stream_rpc_method_handler(
                stream_outcome, handler.request_deserializer, handler.response_serializer
            )
        unary = handler.stream_unary
        assert unary is not None  # Admission makes no others

        def outcome(requests: Iterator[Request], context: grpc.ServicerContext) -> Response:
            with self._outcome(method, context):
                return unary(requests, context)

        return grpc.stream_unary_rpc_method_handler(
            outcome, handler.request_deserializer, handler.response_serializer
        )

    @contextmanager
    def _outcome(self, method: str, context: grpc.ServicerContext) -> Iterator[None]:
        began = self._clock()
        request_id = request_id_of(context)
        reason, failure = "OK", None
        # For this call alone, whose context nobody else has: no need to take it back.
        bind_contextvars(request_id=request_id, method=method, tenant="")
        try:
            yield
        except KVStoreError as error:
            reason, failure = error.reason(), status.to_status(error)
        except grpc.RpcError:
            # Its client went, or its deadline passed, before its request came: gRPC's own to end.
            log.debug("request_never_came")
            raise
        except Exception:
            log.exception("request_failed")
            reason, failure = "INTERNAL", status.internal_status(request_id)
        latency_ms = round((self._clock() - began) * 1e3, 3)
        log.debug("request_handled", reason=reason, latency_ms=latency_ms)
        # Last, so that whoever has the answer finds the line in the log.
        if failure is not None:
            status.abort_with(context, failure)


class Admission(_MethodInterceptor):
    """Refuses, before its request is waited for, a call that may not come in.

    Raises CredentialRequired, TooManyRequests for what is over the tenant's rate, or
    InvalidField for a deadline that is missing or above ``max_deadline``:
    tombstones are kept for longer than that, so no call may live longer. A call whose
    deadline passed while it waited for a thread is refused too: nobody waits for its
    answer. A request that is longer than its method's may be raises LimitExceeded, one
    that is no message of its type InvalidField.
    """

    def __init__(self, callers: Callers, limits: Limits, traffic: Traffic) -> None:
        super().__init__()
        self._callers = callers
        self._traffic = traffic
        self._limits = limits

    def _wrap(
        self, method: str, handler: "grpc.RpcMethodHandler[Request, Response]"
    ) -> "grpc.RpcMethodHandler[Request, Response]":
        always = method in GIVING_BACK
        parse = handler.request_deserializer
        assert parse is not None  # generated code always has one
        size_limit = size_limit_of(method)
        if handler.unary_stream is not None:
            stream = handler.unary_stream

            def admit_stream(
                requests: Iterator[bytes], context: grpc.ServicerContext
            ) -> Iterator[Response]:
                self._require_admissible(context, always=always)
                request = one_request(requests)
                require_size(request, size_limit, self._limits)
                return stream(_parsed(parse, request), context)

            return grpc.stream_stream_rpc_method_handler(
                admit_stream, None, handler.response_serializer
            )
        unary = handler.unary_unary
        assert unary is not None  # the contract has no streams of requests

        def admit(requests: Iterator[bytes], context: grpc.ServicerContext) -> Response:
            self._require_admissible(context, always=always)
            request = one_request(requests)
            require_size(request, size_limit, self._limits)
            return unary(_parsed(parse, request), context)

        return grpc.stream_unary_rpc_method_handler(admit, None, handler.response_serializer)

    def _require_admissible(self, context: grpc.ServicerContext, *, always: bool) -> None:
        tenant = self._callers.identity(context).tenant
        bind_contextvars(tenant=tenant)
        self._traffic.admit(tenant, always=always)
        remaining = context.time_remaining()
        if remaining is None or remaining > self._limits.max_deadline * DEADLINE_ROUNDING:
            maximum = f"{self._limits.max_deadline:g} s"
            raise InvalidField(field="deadline", why="missing or too long", maximum=maximum)
        if remaining <= 0:
            raise InvalidField(field="deadline", value="passed", why="the call had not begun")


def _parsed(parse: Callable[[bytes], Request], request: bytes) -> Request:
    try:
        return parse(request)
    except DecodeError as error:
        raise InvalidField(field="request", why="not a message of its type") from error
