"""Both sockets of a store, which answer what a test wrote down: the wire, without a store."""

import fcntl
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from kvstore.v1 import attach_pb2

LENGTH = struct.Struct("<I")


def refusal(reason: str, *, retry_after_s: float | None = None, **metadata: str) -> bytes:
    """Returns the status details of an error of the store."""
    info = error_details_pb2.ErrorInfo(domain="kvstore", reason=reason, metadata=metadata)
    details: list[Message] = [info]
    if retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(retry_after_s * 1_000))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    status = status_pb2.Status(code=9, message="no", details=packed)
    return bytes(status.SerializeToString())


class ScriptedCalls(grpc.GenericRpcHandler):
    """A gRPC server on a unix socket that answers each method's calls in a written order.

    An answer is a message; the bytes of a refusal; a status code; or an Event,
    for which the call waits before the next answer is given. A method with no
    answer left is UNIMPLEMENTED. ``requests`` are the serialised ones, by
    method, ``metadata`` is of the last call.
    """

    def __init__(self, path: Path) -> None:
        self.answers: dict[str, deque[Message | bytes | grpc.StatusCode | Event]] = {}
        self.requests: dict[str, list[bytes]] = {}
        self.metadata: dict[str, str | bytes] = {}
        self.came = Event()
        self._server = grpc.server(ThreadPoolExecutor(8), handlers=[self])
        self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    def answer(self, method: str, *answers: Message | bytes | grpc.StatusCode | Event) -> None:
        """Adds answers to a method's calls."""
        self.answers.setdefault(method, deque()).extend(answers)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        """Finds the handler of a call."""
        method = handler_call_details.method.rpartition("/")[2]
        self.metadata = dict(handler_call_details.invocation_metadata or ())
        if not self.answers.get(method):
            self.requests.setdefault(method, [])
            return None

        def respond(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.requests.setdefault(method, []).append(request)
            self.came.set()
            answer = self.answers[method].popleft()
            while isinstance(answer, Event):
                answer.wait(30)
                answer = self.answers[method].popleft()
            if isinstance(answer, bytes):
                context.set_trailing_metadata((("grpc-status-details-bin", answer),))
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no")
            if isinstance(answer, grpc.StatusCode):
                context.abort(answer, "no")
            return answer.SerializeToString()

        return grpc.unary_unary_rpc_method_handler(respond)

    def close(self) -> None:
        """Stops, calls under way included."""
        self._server.stop(None).wait()


Answer = tuple[attach_pb2.ServerFrame | bytes, Sequence[int]]


class ScriptedAttach:
    """An attach socket that answers each frame of one client with frames written down before.

    ``answers`` has one list for each frame of the client's; after the last the
    connection stays open until :meth:`hang_up`. Descriptors are the test's.
    """

    def __init__(self, path: Path, *answers: Sequence[Answer]) -> None:
        self.frames: list[attach_pb2.ClientFrame] = []
        self.came = Event()
        self._answers = deque(answers)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._connection: socket.socket | None = None
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, answer: Answer) -> None:
        """Sends a frame that nobody asked for."""
        assert self._connection is not None
        frame, descriptors = answer
        body = frame if isinstance(frame, bytes) else frame.SerializeToString()
        socket.send_fds(self._connection, [LENGTH.pack(len(body)) + body], descriptors)

    def hang_up(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends everything."""
        self.hang_up()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        if self._connection is not None:
            self._connection.close()

    def _run(self) -> None:
        try:
            self._connection, _ = self._listener.accept()
        except OSError:
            return
        while (length := self._receive(LENGTH.size)) is not None:
            body = self._receive(LENGTH.unpack(length)[0])
            if body is None:
                break
            self.frames.append(attach_pb2.ClientFrame.FromString(body))
            if self._answers:
                for answer in self._answers.popleft():
                    self.send(answer)
            else:
                self.came.set()

    def _receive(self, count: int) -> bytes | None:
        assert self._connection is not None
        data = b""
        while len(data) < count:
            piece = self._connection.recv(count - len(data))
            if not piece:
                return None
            data += piece
        return data


def sealed_memfd(size: int, seals: int, content: bytes = b"", *, name: str = "kvstore-test") -> int:
    """Returns a memfd of ``size`` bytes with seals, to be closed by the caller."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(descriptor, size)
    os.pwrite(descriptor, content, 0)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor
