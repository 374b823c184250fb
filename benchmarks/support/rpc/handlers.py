"""The store's methods as gRPC's threads would call them, for another kind of server."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol, TypeAlias, cast

import grpc

from kvstore.rpc.fair_queue import CallThreads
from kvstore.rpc.grpc_adapter import GrpcAdapter
from kvstore.rpc.pipeline import Pipeline
from kvstore.service.clock import Clock
from kvstore.service.store import KVStore
from kvstore.service.tenancy.credentials import Credentials

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]
# From a request's bytes to an answer's, the interceptor included.
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

    def methods(self, adapter: GrpcAdapter) -> dict[str, Method]:
        """Returns every method without streams by its path."""
        return {
            path: partial(_call, adapter, path, handler)
            for path, handler in self.handlers.items()
            if handler.unary_unary is not None
        }


def adapter_of(store: KVStore, credentials: Credentials, clock: Clock) -> GrpcAdapter:
    """Returns an interceptor whose queues have always room, as calls run where they arrive."""
    idle = CallThreads(1, 1024)
    return GrpcAdapter(Pipeline(store, clock), credentials, idle, idle)


def _call(
    adapter: GrpcAdapter,
    path: str,
    registered: Any,  # noqa: ANN401  # handlers are untyped
    request: bytes,
    context: CallContext,
) -> bytes:
    details: Any = CallDetails(path, tuple(context.invocation_metadata()))
    handler: Any = adapter.intercept_service(lambda _: registered, details)
    # Behind the interceptor a request is a stream of one.
    answer = handler.stream_unary(iter((request,)), context)
    serialized: bytes = (handler.response_serializer or bytes)(answer)
    return serialized
