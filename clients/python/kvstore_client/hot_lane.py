"""One lane to a store: a connection over which calls are made, one at a time."""

import contextlib
import math
import os
import select
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
MILLISECONDS, MICROSECONDS = 1_000, 1_000_000
LATE = "the lane did not answer in time"
# For what must not wait; the deadline is not the kernel's to keep.
AT_ONCE = int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
# What tells that a lane is of no use any more; a timeout does besides.
BREAKS = (OSError, EOFError, BrokenFrames, DecodeError)
# What an answer is received in, as far as it comes at once: one of thousands of slots is.
CHUNK_BYTES = 1 << 16

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
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
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
            # From now on what may wait is told so each time, or is waited for before.
            self._socket.settimeout(None)
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
        try:
            self._send([lengths + head, *request], deadline)
            head, body = self._receive(deadline)
            answer = attach_pb2.LaneAnswer.FromString(head) if head else None
        except TimeoutError:
            raise StoreTimedOut(LATE) from None
        except BREAKS as error:
            raise _broken(error) from None
        if answer is not None and answer.HasField("status"):
            raise error_of_status(answer.status)
        return body

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
        try:
            sent = self._socket.sendmsg(pieces, (), AT_ONCE)
        except BlockingIOError:
            sent = 0
        if sent == sum(map(len, pieces)):
            return
        for piece in pieces:
            if sent < len(piece):
                self._socket.settimeout(deadline.remaining())
                self._socket.sendall(memoryview(piece)[sent:], socket.MSG_NOSIGNAL)
            sent = max(0, sent - len(piece))
        self._socket.settimeout(None)

    def _receive(self, deadline: Deadline) -> tuple[bytes, bytes]:
        """Return an answer's head and body, each byte copied once where it comes at once."""
        data = self._chunk(CHUNK_BYTES, deadline)
        while len(data) < LENGTHS.size:
            data += self._chunk(LENGTHS.size - len(data), deadline)
        head_bytes, body_bytes = LENGTHS.unpack_from(data)
        if head_bytes + body_bytes > MAX_FRAME_BYTES:
            msg = f"an answer of {body_bytes} bytes is over {MAX_FRAME_BYTES}"
            raise BrokenFrames(msg)
        body_at = LENGTHS.size + head_bytes
        end = body_at + body_bytes
        if len(data) < end:
            received = bytearray(data)
            while len(received) < end:
                received += self._chunk(end - len(received), deadline)
            data = bytes(received)
        if len(data) > end:
            msg = "more came than an answer"
            raise BrokenFrames(msg)
        return data[LENGTHS.size : body_at], data[body_at:]

    def _chunk(self, most: int, deadline: Deadline) -> bytes:
        """Return what comes next, at least a byte."""
        # Rounded up, so that what comes just in time is not missed.
        if not self._poll.poll(math.ceil(deadline.remaining() * MILLISECONDS)):
            raise TimeoutError
        data = self._socket.recv(most, AT_ONCE)
        if not data:
            msg = "the store hung up"
            raise EOFError(msg)
        return data


@contextlib.contextmanager
def _typed(late: str) -> Generator[None, None, None]:
    """Raise what a socket raises as a ``StoreError``."""
    try:
        yield
    except TimeoutError:
        raise StoreTimedOut(late) from None
    except BREAKS as error:
        raise _broken(error) from None


def _broken(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"the lane: {error}")


def _close_inherited() -> None:
    """Close a forked child's copies: lanes are their parent's."""
    for lane in list(_open):
        lane.close()


os.register_at_fork(after_in_child=_close_inherited)
