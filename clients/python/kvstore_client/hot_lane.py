"""One lane to a store: a connection over which calls are made, one at a time."""

import contextlib
import os
import socket
import struct
from collections.abc import Generator, Sequence
from pathlib import Path
from weakref import WeakSet

from google.protobuf.message import DecodeError

from kvstore.v1 import attach_pb2
from kvstore_client.attach import PROTOCOL_VERSION
from kvstore_client.deadline import Deadline
from kvstore_client.errors import StoreTimedOut, StoreUnavailable, error_of_status
from kvstore_client.frames import MAX_FRAME_BYTES, BrokenFrames, close_all
from kvstore_client.frames import receive_frame as receive
from kvstore_client.frames import send_frame as send

# Two lengths: of the head and of the body.
LENGTHS = struct.Struct("<II")
# So that a long prompt is sent without waiting for its reader; the kernel bounds it.
BUFFER_BYTES = 1 << 20
MICROSECONDS = 1_000_000

_open: "WeakSet[HotLane]" = WeakSet()


class HotLane:
    """Opened by :meth:`open`, then used by one thread at a time; any may :meth:`shut` it.

    After an error that is no refusal it is of no use, and to be closed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        self._numbers: dict[str, int] = {}
        _open.add(self)

    def open(self, name: str, lease_id: bytes, secret: bytes, deadline: Deadline) -> None:
        """Connect under a lease that this process is attached to; raises ``StoreError``."""
        hello = attach_pb2.Hello(protocol_version=PROTOCOL_VERSION, display_name=name)
        opening = attach_pb2.OpenLane(lease_id=lease_id, lease_secret=secret)
        with _typed("the lane was not opened in time"):
            self._socket.settimeout(deadline.remaining())
            self._socket.connect(str(self._path))
            send(self._socket, attach_pb2.ClientFrame(hello=hello))
            self._answer("welcome", deadline)
            send(self._socket, attach_pb2.ClientFrame(open_lane=opening))
            methods = self._answer("lane_opened", deadline).lane_opened.methods
        self._numbers = {path: number for number, path in enumerate(methods)}

    def takes(self, method: str) -> bool:
        """Return whether a method, by its path over gRPC, may be called."""
        return method in self._numbers

    def call(self, method: str, request: Sequence[bytes], timeout: float) -> bytes:
        """Return a method's response; raises ``StoreError``. ``request`` comes in pieces."""
        deadline = Deadline(timeout)
        head = attach_pb2.LaneCall(
            method=self._numbers[method], timeout_us=int(timeout * MICROSECONDS) or 1
        ).SerializeToString()
        lengths = LENGTHS.pack(len(head), sum(map(len, request)))
        with _typed("the lane did not answer in time"):
            self._socket.settimeout(timeout)
            self._send([lengths + head, *request], deadline)
            head_bytes, body_bytes = LENGTHS.unpack(self._receive(LENGTHS.size, deadline))
            if head_bytes + body_bytes > MAX_FRAME_BYTES:
                msg = f"an answer of {body_bytes} bytes is over {MAX_FRAME_BYTES}"
                raise BrokenFrames(msg)
            both = self._receive(head_bytes + body_bytes, deadline)
            if not head_bytes:
                return both
            answer = attach_pb2.LaneAnswer.FromString(both[:head_bytes])
        if answer.HasField("status"):
            raise error_of_status(answer.status)
        return both[head_bytes:]

    def shut(self) -> None:
        """End whatever goes on over it, from any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it. Can be repeated."""
        self._socket.close()

    def _answer(self, kind: str, deadline: Deadline) -> attach_pb2.ServerFrame:
        self._socket.settimeout(deadline.remaining())
        frame, descriptors = receive(self._socket)
        close_all(descriptors)
        if frame.HasField("refused"):
            raise error_of_status(frame.refused)
        if not frame.HasField(kind):
            msg = f"{frame.WhichOneof('message')} came in the place of {kind}"
            raise BrokenFrames(msg)
        return frame

    def _send(self, pieces: Sequence[bytes], deadline: Deadline) -> None:
        """Send all pieces, together where the kernel takes them so."""
        sent = self._socket.sendmsg(pieces, (), socket.MSG_NOSIGNAL)
        for piece in pieces:
            if sent < len(piece):
                self._socket.settimeout(deadline.remaining())
                self._socket.sendall(memoryview(piece)[sent:], socket.MSG_NOSIGNAL)
            sent = max(0, sent - len(piece))

    def _receive(self, count: int, deadline: Deadline) -> bytes:
        data = self._socket.recv(count) if count else b""
        if len(data) == count:
            return data
        received = bytearray(data)
        while len(received) < count:
            if not data:
                msg = "the store hung up"
                raise EOFError(msg)
            self._socket.settimeout(deadline.remaining())
            data = self._socket.recv(count - len(received))
            received += data
        return bytes(received)


@contextlib.contextmanager
def _typed(late: str) -> Generator[None, None, None]:
    """Raise what a socket raises as a ``StoreError``."""
    try:
        yield
    except TimeoutError:
        raise StoreTimedOut(late) from None
    except (OSError, EOFError, BrokenFrames, DecodeError) as error:
        raise StoreUnavailable(f"the lane: {error}") from None


def _close_inherited() -> None:
    """Close a forked child's copies: lanes are their parent's."""
    for lane in list(_open):
        lane.close()


os.register_at_fork(after_in_child=_close_inherited)
