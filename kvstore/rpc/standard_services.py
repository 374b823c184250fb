"""Reading of requests by the handlers of gRPC's own services: health and reflection."""

from collections.abc import Callable, Iterator
from threading import Timer
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from kvstore.errors import InvalidField
from kvstore.rpc.wire import status

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behavior: TypeAlias = Callable[..., Any]
Parse: TypeAlias = Callable[[bytes], Any]

# Seconds to wait for the one request of a call; a probe sends it at once.
PATIENCE = 1.0
# The attribute by which gRPC finds the threads that run a method.
THREADS = "experimental_thread_pool"


def one_request(requests: Iterator[bytes]) -> bytes:
    """Waits for the one request of a call.

    Raises InvalidField if the call has none, and ``grpc.RpcError`` if the call ends before.
    """
    for request in requests:
        return request
    raise InvalidField(field="request", why="missing")


def quiet(handler: Handler) -> Handler:
    """Returns a handler that reads the requests of ``handler`` itself, and ends unreadable calls.

    In gRPC 1.85 an unreadable request costs a traceback in the log and an _RPCState that is never
    freed. A request that does not arrive costs a thread. Neither needs a credential.
    """
    parse = handler.request_deserializer
    if parse is None:  # it reads its requests itself already
        return handler
    if handler.unary_unary is not None:
        return grpc.stream_unary_rpc_method_handler(
            _reading(handler.unary_unary, parse), None, handler.response_serializer
        )
    assert handler.stream_stream is not None  # neither service has a method of another kind
    return grpc.stream_stream_rpc_method_handler(
        _reading_all(handler.stream_stream, parse), None, handler.response_serializer
    )


def _reading(behavior: Behavior, parse: Parse) -> Behavior:
    def read(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:  # noqa: ANN401  # gRPC's
        try:
            request = request_in_time(requests, context)
        except InvalidField as error:
            status.abort(context, error)
        return behavior(_parsed(request, parse, context), context)

    setattr(read, THREADS, getattr(behavior, THREADS, None))
    return read


def request_in_time(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
    """Returns a call's request; cancels the call after PATIENCE seconds without one.

    Raises as :func:`one_request` does.
    """
    timer = Timer(PATIENCE, context.cancel)
    timer.daemon = True
    timer.start()
    try:
        return one_request(requests)
    finally:
        timer.cancel()


def _reading_all(behavior: Behavior, parse: Parse) -> Behavior:
    def read(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:  # noqa: ANN401  # gRPC's
        return behavior((_parsed(raw, parse, context) for raw in requests), context)

    return read


def _parsed(raw: bytes, parse: Parse, context: grpc.ServicerContext) -> Any:  # noqa: ANN401  # gRPC's
    try:
        return parse(raw)
    except DecodeError:
        status.abort(context, InvalidField(field="request", why="not a message of its type"))
