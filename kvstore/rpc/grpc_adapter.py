"""What every call passes on its way to a servicer, outermost first.

``Outcomes`` gives the call its request id, turns whatever was raised into a
status, and logs one line. ``Admission`` refuses a call without credential or
deadline, and only then waits for the request: to gRPC the requests are streams,
for which it does not wait itself, in a thread that a call may have for ever.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from kvstore import tracing
from kvstore.core import Limits
from kvstore.errors import InvalidField
from kvstore.logs import CALL
from kvstore.rpc.identity import Callers
from kvstore.rpc.pipeline import (
    GIVING_BACK,
    NOT_OF_ITS_TYPE,
    Outcome,
    call_logger,
    require_admissible,
    require_size,
    size_limit_of,
    usable_request_id,
)
from kvstore.rpc.quiet import one_request, quiet, request_in_time
from kvstore.rpc.wire import status
from kvstore.service.clock import Clock
from kvstore.service.tenancy.rate_limit import Traffic
from kvstore.service.timing import CallTimes

REQUEST_ID = "x-request-id"
# Open to whoever reaches the socket, without deadline: probes, and tools that ask for descriptors.
EXEMPT = (f"/{health.SERVICE_NAME}/", f"/{reflection.SERVICE_NAME}/")

Request = TypeVar("Request")
Response = TypeVar("Response")
# What intercept_service is given and answers. grpc's classes are generic for type checkers alone.
Handler: TypeAlias = "grpc.RpcMethodHandler[Request, Response] | None"
# How a stream's answers go out, from whatever thread; None ends it.
Send: TypeAlias = Callable[[Response | None], None]
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Handler[Request, Response]]"


def sending(behavior: Callable[..., None]) -> Callable[..., Any]:
    """Marks a stream's behavior as one that is given ``send`` and returns at once.

    gRPC asks for the mark (``_stream_response_in_pool`` in grpc/_server.py): a stream that
    answers by returning an iterator takes a thread of the calls' for its life.
    """
    behavior.experimental_non_blocking = True  # type: ignore[attr-defined]  # where gRPC looks
    return behavior


def request_id_of(context: grpc.ServicerContext) -> str:
    """Returns the id that the client gave the call, or none.

    Where calls are traced the span that the client names comes first.
    """
    given = ""
    for key, value in context.invocation_metadata():
        if tracing.ON and key == tracing.TRACEPARENT and isinstance(value, str):
            return usable_request_id(value)
        if key == REQUEST_ID and isinstance(value, str):
            given = value
    return usable_request_id(given)


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
        """Wraps the method, unless it is exempt or unknown."""
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
        """Returns the handler that takes the method's calls from now on."""


class Outcomes(_MethodInterceptor):
    """Ends every call as the contract says, whatever happened in it.

    An error of ours becomes its status; anything else is a bug, becomes INTERNAL
    and is logged with its traceback. One line a call at debug, never a request's
    content. ``times`` are told how long each took, but for streams, which last as long as
    somebody listens.
    """

    def __init__(self, clock: Clock, times: CallTimes | None = None) -> None:
        super().__init__()
        self._clock = clock
        self._times = times
        self._log = call_logger()

    def _wrap(
        self, method: str, handler: "grpc.RpcMethodHandler[Request, Response]"
    ) -> "grpc.RpcMethodHandler[Request, Response]":
        if handler.stream_stream is not None:
            stream = handler.stream_stream

            def stream_outcome(
                requests: Iterator[Request], context: grpc.ServicerContext, send: Send[Response]
            ) -> None:
                request_id = request_id_of(context)
                with Outcome(self._clock, self._log, method, request_id, is_stream=True) as outcome:
                    stream(requests, context, send)  # type: ignore[call-arg]  # as Sending says
                if outcome.failure is not None:
                    status.abort_with(context, outcome.failure)

            return grpc.stream_stream_rpc_method_handler(
                sending(stream_outcome), handler.request_deserializer, handler.response_serializer
            )
        unary = handler.stream_unary
        assert unary is not None  # Admission makes no others

        def outcome(requests: Iterator[Request], context: grpc.ServicerContext) -> Response:
            request_id = request_id_of(context)
            with Outcome(self._clock, self._log, method, request_id, times=self._times) as outcome:
                return unary(requests, context)
            # Last, so that whoever has the answer finds the line in the log.
            return _end(context, outcome)

        return grpc.stream_unary_rpc_method_handler(
            outcome, handler.request_deserializer, handler.response_serializer
        )


class Admission(_MethodInterceptor):
    """Refuses, before its request is waited for, a call that may not come in.

    Raises CredentialRequired, TooManyRequests for what is over the tenant's rate, or
    InvalidField for a deadline that is missing or above ``max_deadline``, for a stream
    of answers ``max_watch``. A call whose deadline passed while it waited for a thread is
    refused too: nobody waits for its answer. A request that is longer than its method's may
    be raises LimitExceeded, one that is no message of its type InvalidField.
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
                requests: Iterator[bytes], context: grpc.ServicerContext, send: Send[Response]
            ) -> None:
                longest = self._limits.max_watch
                self._require_admissible(context, longest=longest, always=always)
                # Its deadline is far: a request that does not come must not keep the thread.
                request = request_in_time(requests, context)
                require_size(len(request), size_limit, self._limits)
                stream(parsed(parse, request), context, send)  # type: ignore[call-arg]

            return grpc.stream_stream_rpc_method_handler(
                sending(admit_stream), None, handler.response_serializer
            )
        unary = handler.unary_unary
        assert unary is not None  # the contract has no streams of requests

        def admit(requests: Iterator[bytes], context: grpc.ServicerContext) -> Response:
            self._require_admissible(context, longest=self._limits.max_deadline, always=always)
            request = one_request(requests)
            require_size(len(request), size_limit, self._limits)
            return unary(parsed(parse, request), context)

        return grpc.stream_unary_rpc_method_handler(admit, None, handler.response_serializer)

    def _require_admissible(
        self, context: grpc.ServicerContext, *, longest: float, always: bool
    ) -> None:
        tenant = self._callers.identity(context).tenant
        outcome = CALL.get()
        assert isinstance(outcome, Outcome)  # the interceptor around this one has set it
        outcome.tenant = tenant
        remaining = context.time_remaining()
        require_admissible(tenant, remaining, traffic=self._traffic, longest=longest, always=always)


def _end(context: grpc.ServicerContext, outcome: Outcome) -> NoReturn:
    assert outcome.failure is not None  # else it returned, or raised gRPC's own
    status.abort_with(context, outcome.failure)


def parsed(parse: Callable[[bytes], Request], request: bytes) -> Request:
    """Returns a request, read; raises InvalidField for bytes that are none."""
    try:
        return parse(request)
    except DecodeError as error:
        raise InvalidField(field="request", why=NOT_OF_ITS_TYPE) from error
