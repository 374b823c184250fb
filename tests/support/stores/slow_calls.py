"""A store behind a gRPC server that passes calls on, each method as slowly as it is told."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

import grpc

from kvstore_client.runtime_dir import RuntimeDir
from processes.proxy import SocketProxy

TIMEOUT = 30.0


class SlowCalls(grpc.GenericRpcHandler):
    """Passes unary calls on, the ``held`` ones once they are let go. ``counts`` are by method."""

    def __init__(self, target: str) -> None:
        self.counts: Counter[str] = Counter()
        self.held: dict[str, Event] = {}
        self._channel = grpc.insecure_channel(target)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """Pass a call on, with its metadata, and its answer back."""
        path = handler_call_details.method
        method = path.rpartition("/")[2]
        ask = self._channel.unary_unary(path, _as_it_is, _as_it_is)

        def respond(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.counts[method] += 1
            if method in self.held:
                self.held[method].wait(TIMEOUT)
            try:
                return ask(request, timeout=TIMEOUT, metadata=_metadata(context))
            except grpc.RpcError as error:
                if not isinstance(error, grpc.Call):  # all that a blocking call raises
                    raise
                context.set_trailing_metadata(error.trailing_metadata() or ())
                context.abort(error.code(), error.details() or "")

        return grpc.unary_unary_rpc_method_handler(respond)

    def hold(self, method: str) -> None:
        """Answers no calls of a method."""
        self.held[method] = Event()

    def let_go(self) -> None:
        """Answers all calls again, those that wait too."""
        held, self.held = self.held, {}
        for each in held.values():
            each.set()

    def close(self) -> None:
        """Ends the channel."""
        self.let_go()
        self._channel.close()


def _metadata(context: grpc.ServicerContext) -> list[tuple[str, str | bytes]]:
    """Returns what our clients send; the rest is gRPC's own."""
    return [each for each in context.invocation_metadata() if each[0] in OURS]


OURS = {"authorization", "kvstore-lease-secret-bin"}


def _as_it_is(message: bytes) -> bytes:
    return message


@contextmanager
def slow_calls(runtime_dir: Path) -> Iterator[tuple[Path, SlowCalls]]:
    """Serves the store of ``runtime_dir`` from another folder; its calls can be held up there."""
    with TemporaryDirectory(prefix="kv-slow-") as folder:
        here, store = RuntimeDir(folder), RuntimeDir(runtime_dir)
        attach = SocketProxy(here.attach_socket, store.attach_socket)
        calls = SlowCalls(store.grpc_target)
        server = grpc.server(ThreadPoolExecutor(16), handlers=[calls])
        server.add_insecure_port(here.grpc_target)
        server.start()
        try:
            yield here.path, calls
        finally:
            calls.let_go()
            server.stop(None).wait()
            calls.close()
            attach.close()
