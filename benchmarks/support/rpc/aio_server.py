"""kvstore-server with grpc.aio instead of gRPC's threads. All else is the server's own code.

Each method runs on the event loop from its first step to its last. The store's calls take
microseconds, and nothing else may run beside them. The interceptors are put around the methods
once, which is less work than gRPC's threads do for each call.
"""

import asyncio
import sys
from concurrent.futures import Future
from threading import Thread
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

import grpc
from grpc import aio

import kvstore.server as program
from kvstore.rpc.attach.table import SocketAccess
from kvstore.rpc.health.watchdog import Health
from kvstore.rpc.server import MAX_CALLS, Sockets, add_services, server_options
from kvstore.service.clock import Clock
from kvstore.service.store import KVStore
from kvstore.service.tenancy.credentials import Credentials
from support.rpc.handlers import CallContext, Ended, Method, Registry, adapter_of

START_TIMEOUT = 30.0


class Stopping:
    """The end of a server, for which a caller can wait."""

    def __init__(self, done: "Future[None]") -> None:
        self._done = done

    def wait(self) -> None:
        """Waits until the server has ended."""
        self._done.result()


class AioServer(grpc.GenericRpcHandler):
    """A server of ``methods`` on a thread of its own, with the methods of a ``grpc.Server``."""

    def __init__(self, methods: dict[str, Method], store: KVStore, sockets: Sockets) -> None:
        self._handlers = {path: _unary(method) for path, method in methods.items()}
        self._store = store
        self._sockets = sockets
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="kvstore-aio", daemon=True)
        self._server: Any = None

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        """Returns the handler of a call."""
        return self._handlers.get(handler_call_details.method)

    def start(self) -> None:
        """Binds the socket and serves."""
        self._thread.start()
        self._submit(self._start()).result(START_TIMEOUT)

    def stop(self, grace: float) -> Stopping:
        """Accepts no more calls, and gives running ones ``grace`` seconds to end."""
        return Stopping(self._submit(self._server.stop(grace)))

    async def _start(self) -> None:
        self._server = aio.server(
            options=server_options(self._store.limits), maximum_concurrent_rpcs=MAX_CALLS
        )
        self._server.add_generic_rpc_handlers((self,))
        path = self._sockets.grpc_path
        self._server.add_insecure_port(f"unix:{quote(str(path))}")
        SocketAccess().apply(path)
        await self._server.start()

    def _submit(self, coroutine: Any) -> "Future[None]":  # noqa: ANN401  # grpc.aio is untyped
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


def build_aio_server(
    store: KVStore,
    credentials: Credentials,
    health_state: Health,
    *,
    sockets: Sockets,
    version: str,
    clock: Clock,
    threads: object = None,
) -> AioServer:
    """Returns a server like ``kvstore.rpc.server.build_server``. Its loop needs no threads."""
    del threads
    registry = Registry()
    add_services(registry.as_server(), store, health_state, sockets=sockets, version=version)
    methods = registry.methods(adapter_of(store, credentials, clock))
    return AioServer(methods, store, sockets)


def _unary(method: Method) -> "grpc.RpcMethodHandler[bytes, bytes]":
    async def call(request: bytes, context: Any) -> bytes:  # noqa: ANN401  # grpc.aio is untyped
        try:
            return method(request, CallContext(context))
        except Ended as end:
            await context.abort_with_status(end.status)
            raise AssertionError from end  # it never returns

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(call)
    return handler


def main() -> int:
    """Runs kvstore-server, its gRPC server replaced."""
    with patch.object(program, "build_server", build_aio_server):
        return program.run()


if __name__ == "__main__":
    sys.exit(main())
