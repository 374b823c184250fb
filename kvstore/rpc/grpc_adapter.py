"""The interceptor that gives gRPC's calls to the pipeline, each in its tenant's queue.

To gRPC the requests of every method are streams, for which it does not wait itself. So the
pipeline can refuse a call without credential or deadline before a thread waits for its request.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection
from grpc_status import rpc_status

from kvstore import tracing
from kvstore.errors import KVStoreError
from kvstore.rpc.fair_queue import CallThreads
from kvstore.rpc.pipeline import GIVING_BACK, Call, Method, Pipeline, method_of
from kvstore.rpc.sender_identity import Metadata, Sender, secret_of
from kvstore.rpc.standard_services import one_request, quiet, request_in_time
from kvstore.rpc.wire import status
from kvstore.service.tenancy.credentials import Credentials
from kvstore.service.tenancy.rate_limit import TooManyRequests

REQUEST_ID = "x-request-id"
CHECKS = f"/{health.SERVICE_NAME}/"
# Open to whoever reaches the socket, without deadline: probes, and tools that ask for descriptors.
EXEMPT = (CHECKS, f"/{reflection.SERVICE_NAME}/")
# The queues are ("tenant", name), and these: of callers who are not known yet, and of probes.
UNKNOWN = ("unknown",)
PROBES = ("probes",)
# Seconds after which a caller with too many calls under way may try again.
PATIENCE = 0.1

Request = TypeVar("Request")
Response = TypeVar("Response")
# grpc's classes are generic for type checkers alone.
Handler: TypeAlias = "grpc.RpcMethodHandler[Request, Response] | None"
# Sends an answer of a stream, from any thread; None ends it.
Send: TypeAlias = Callable[[Message | None], None]
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Handler[Request, Response]]"


class GrpcAdapter(grpc.ServerInterceptor):
    """Looks a call's sender up as it arrives, names its queue, and gives it to the pipeline.

    A call without a credential that says its tenant, a client certificate's too, waits in one queue
    with all of its kind. A refused call takes no thread: it ends in the one thread that all calls
    pass.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        credentials: Credentials,
        threads: CallThreads,
        check_threads: CallThreads,
    ) -> None:
        """``check_threads`` take the calls of health, ``threads`` all others."""
        self._pipeline = pipeline
        self._credentials = credentials
        self._threads = threads
        self._check_threads = check_threads
        # gRPC asks for a handler with every call, on the one thread that all calls pass.
        self._methods: dict[str, tuple[Method, Any]] = {}
        self._exempt: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        # Its requests are a stream, so that gRPC does not wait for one before it refuses.
        self._refusal: grpc.RpcMethodHandler[Any, Any] = grpc.stream_unary_rpc_method_handler(
            self._refuse
        )

    def intercept_service(
        self,
        continuation: "Continuation[Request, Response]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler[Request, Response]":
        """Returns the handler of one call; None for an unknown method."""
        path = handler_call_details.method
        if path.startswith(EXEMPT):
            return self._exempt_handler(path, continuation, handler_call_details)
        sender = Sender(handler_call_details.invocation_metadata, self._credentials)
        queue = UNKNOWN if sender.tenant is None else queue_of(sender.tenant)
        if not self._threads.arrive(queue, always=path in GIVING_BACK):
            if sender.tenant is not None:
                self._pipeline.traffic.refused(sender.tenant)
            return self._refusal
        known = self._methods.get(path)
        if known is None:
            handler = continuation(handler_call_details)
            if handler is None:
                return None
            known = self._methods[path] = self._method(path, handler)
        method, serializer = known
        if method.has_stream:
            return grpc.stream_stream_rpc_method_handler(
                sending(partial(self._begin, method, sender)), None, serializer
            )
        return grpc.stream_unary_rpc_method_handler(partial(self._answer, method, sender))

    def _exempt_handler(
        self,
        path: str,
        continuation: "Continuation[Request, Response]",
        details: grpc.HandlerCallDetails,
    ) -> "Handler[Request, Response]":
        is_check = path.startswith(CHECKS)
        if not (self._check_threads if is_check else self._threads).arrive(PROBES):
            if is_check:
                self._threads.refuse()
            return self._refusal
        found = self._exempt.get(path)
        if found is None:
            handler = continuation(details)
            if handler is None:
                return None
            found = self._exempt[path] = quiet(handler)
        return found

    def _method(
        self, path: str, handler: "grpc.RpcMethodHandler[Any, Any]"
    ) -> tuple[Method, Callable[..., bytes] | None]:
        """Returns a method of the contract, and what makes bytes of the answers of its stream."""
        serve: Any = handler.unary_unary or handler.unary_stream
        assert serve is not None  # the contract has no streams of requests
        return method_of(path, serve, self._pipeline.limits), handler.response_serializer

    def _answer(
        self,
        method: Method,
        sender: Sender,
        requests: Iterator[bytes],
        context: grpc.ServicerContext,
    ) -> bytes:
        incoming = _Incoming(sender, requests, context)
        response, failure = self._pipeline.answer(method, request_id_of(sender.metadata), incoming)
        if failure is not None:
            # Last, so that whoever has the answer finds the line in the log.
            status.abort_with(context, failure)
        return response

    def _begin(
        self,
        method: Method,
        sender: Sender,
        requests: Iterator[bytes],
        context: grpc.ServicerContext,
        send: Send,
    ) -> None:
        incoming = _Incoming(sender, requests, context, GrpcStream(context, send))
        _, failure = self._pipeline.answer(method, request_id_of(sender.metadata), incoming)
        if failure is not None:
            status.abort_with(context, failure)

    def _refuse(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> None:
        del requests
        error = TooManyRequests(
            quota="calls_under_way",
            maximum=self._threads.largest_queue,
            retry_after_s=PATIENCE,
        )
        status.abort(context, error)


def queue_of(tenant: str) -> tuple[str, str]:
    """Returns the queue of the calls of a known tenant."""
    return "tenant", tenant


def sending(behavior: Callable[..., None]) -> Callable[..., Any]:
    """Marks a stream's behavior as one that is given ``send`` and returns at once.

    gRPC asks for the mark (``_stream_response_in_pool`` in grpc/_server.py). A stream that answers
    by returning an iterator keeps one of the calls' threads for its life.
    """
    behavior.experimental_non_blocking = True  # type: ignore[attr-defined]  # where gRPC looks
    return behavior


def request_id_of(metadata: Metadata) -> str:
    """Returns the id that the client gave the call, or "".

    If calls are traced the span that the client names comes first.
    """
    given = ""
    for key, value in metadata:
        if tracing.ON and key == tracing.TRACEPARENT and isinstance(value, str):
            return value
        if key == REQUEST_ID and isinstance(value, str):
            given = value
    return given


class GrpcStream:
    """The stream of answers of one call."""

    def __init__(self, context: grpc.ServicerContext, send: Send) -> None:
        self.send = send
        self._context = context

    def on_end(self, action: Callable[[], None]) -> None:
        """Calls ``action`` when the call ends, or at once if it has ended."""
        if not self._context.add_callback(action):
            action()

    def end(self, error: KVStoreError | None = None) -> None:
        """Ends the call after the answers that were sent, with an error if there is one."""
        if error is not None:
            ending = rpc_status.to_status(status.to_status(error))
            self._context.set_code(ending.code)
            self._context.set_details(ending.details)
            self._context.set_trailing_metadata(ending.trailing_metadata)
        self.send(None)


class _Incoming(NamedTuple):
    """A call in the thread that answers it."""

    sender: Sender
    requests: Iterator[bytes]
    context: grpc.ServicerContext
    stream: GrpcStream | None = None

    @property
    def call(self) -> Call:
        """The call, its sender known by the connection too. Raises CredentialRequired."""
        return Call(
            self.sender.identity(self.context),
            remaining=self.remaining,
            stream=self.stream,
            lease_secret=secret_of(self.sender.metadata),
        )

    @property
    def body(self) -> bytes:
        """The request, once it comes. A stream, whose deadline is far, waits a short time."""
        if self.stream is None:
            return one_request(self.requests)
        return request_in_time(self.requests, self.context)

    @property
    def remaining(self) -> float | None:
        """The time to its deadline in seconds."""
        return self.context.time_remaining()
