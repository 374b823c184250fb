"""Handlers of gRPC's own services that read their requests themselves."""

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

# Seconds for the one request of a call to come; whoever probes sends it at once.
PATIENCE = 1.0
# What gRPC looks for at a method: whether it sends by itself, and whose threads call it.
MARKS = ("experimental_non_blocking", "experimental_thread_pool")


def one_request(requests: Iterator[bytes]) -> bytes:
    """Waits for the one request of a call; raises InvalidField where it ends without one.

    Raises ``grpc.RpcError`` where the call ends before.
    """
    for request in requests:
        return request
    raise InvalidField(field="request", why="missing")


def quiet(handler: Handler) -> Handler:
    """Returns a handler that does the same, and ends a call whose request cannot be read.

    Left to gRPC (1.85), each such request costs a traceback in the log and an
    _RPCState that is never let go, and one that does not come costs a thread for as
    long as its client likes, all without a credential.
    """
    parse = handler.request_deserializer
    if parse is None:  # it reads them itself already
        return handler
    if handler.unary_unary is not None:
        return grpc.stream_unary_rpc_method_handler(
            _reading(handler.unary_unary, parse), None, handler.response_serializer
        )
    if handler.unary_stream is not None:
        return grpc.stream_stream_rpc_method_handler(
            _reading(handler.unary_stream, parse), None, handler.response_serializer
        )
    assert handler.stream_stream is not None  # neither service has a method of the fourth kind
    return grpc.stream_stream_rpc_method_handler(
        _reading_all(handler.stream_stream, parse), None, handler.response_serializer
    )


def _reading(behavior: Behavior, parse: Parse) -> Behavior:
    def read(requests: Iterator[bytes], context: grpc.ServicerContext, *send: Any) -> Any:  # noqa: ANN401  # gRPC's
        try:
            request = request_in_time(requests, context)
        except InvalidField as error:
            status.abort(context, error)
        return behavior(_parsed(request, parse, context), context, *send)

    for mark in MARKS:
        if hasattr(behavior, mark):
            setattr(read, mark, getattr(behavior, mark))
    return read


def request_in_time(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
    """Returns a call's request; one that does not come within PATIENCE ends the call.

    Raises what :func:`one_request` raises.
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
