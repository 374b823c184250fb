"""The store's methods as gRPC's threads would call them, for another kind of server."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol, TypeAlias, cast

import grpc

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]
# From a request's bytes to an answer's, including interceptors.
Method: TypeAlias = Callable[[bytes, "CallContext"], bytes]


class Ended(Exception):
    """A method ended its call with this status."""

    def __init__(self, status: grpc.Status) -> None:
        super().__init__(status.details)
        self.status = status


class Caller(Protocol):
    """The facts of a call: the part of a context that grpc.aio shares."""

    def invocation_metadata(self) -> Metadata:
        """Returns the call's metadata."""
        ...

    def time_remaining(self) -> float:
        """Returns the seconds until its deadline."""
        ...

    def peer(self) -> str:
        """Returns the address of the caller, as gRPC names it."""
        ...


class CallContext:
    """The part of a ServicerContext that the store's methods use."""

    def __init__(self, caller: Caller) -> None:
        self.invocation_metadata = caller.invocation_metadata
        self.time_remaining = caller.time_remaining
        self.peer = caller.peer

    def cancel(self) -> None:
        """Does nothing, because a waiting caller already has its request."""

    def abort_with_status(self, status: grpc.Status) -> NoReturn:
        """Ends the call. Raises :class:`Ended`."""
        raise Ended(status)


@dataclass
class CallDetails:
    """The facts that an interceptor gets before a call."""

    method: str
    invocation_metadata: tuple[tuple[str, str | bytes], ...] = ()


class Registry:
    """A stand-in for the server of ``add_services`` that keeps the handlers."""

    def __init__(self) -> None:
        self.handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Ignores the handlers, because they are also added by their methods' names."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]
    ) -> None:
        """Keeps a service's handlers by the paths of their methods."""
        self.handlers |= {f"/{service}/{name}": each for name, each in handlers.items()}

    def as_server(self) -> grpc.Server:
        """Returns itself under a server's type."""
        return cast("grpc.Server", self)

    def methods(self, interceptors: Iterable[grpc.ServerInterceptor]) -> dict[str, Method]:
        """Returns every method without streams by its path. The first interceptor is outermost."""
        found = {}
        for path, each in self.handlers.items():
            handler: Any = each
            if handler.unary_unary is None:
                continue
            for interceptor in reversed(list(interceptors)):
                handler = interceptor.intercept_service(partial(_same, handler), CallDetails(path))
            found[path] = _method_of(handler)
        return found


def _same(handler: object, details: object) -> Any:  # noqa: ANN401  # handlers are untyped
    del details
    return handler


def _method_of(handler: Any) -> Method:  # noqa: ANN401  # handlers are untyped
    parse = handler.request_deserializer or bytes
    serialize = handler.response_serializer

    def method(request: bytes, context: CallContext) -> bytes:
        # After interceptors a request is a stream of one.
        if handler.stream_unary is not None:
            answer: bytes = serialize(handler.stream_unary(iter((request,)), context))
        else:
            answer = serialize(handler.unary_unary(parse(request), context))
        return answer

    return method
