"""One lane to a store: a connection that carries one call after another."""

import contextlib
import math
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import NamedTuple
from weakref import WeakSet

from google.protobuf.message import DecodeError

from kvstore import tracing
from kvstore.v1 import attach_pb2
from kvstore_client.calls.attach_connection import PROTOCOL_VERSION
from kvstore_client.calls.blocking_frames import MAX_FRAME_BYTES, BrokenFrames, close_all
from kvstore_client.calls.blocking_frames import receive_frame as receive
from kvstore_client.calls.blocking_frames import send_frame as send
from kvstore_client.calls.deadlines import Deadline
from kvstore_client.errors import StoreTimedOut, StoreUnavailable, error_of_status

# Two lengths: of the head and of the body.
LENGTHS = struct.Struct("<II")
# A long prompt fits, so its sender does not wait for the reader. The kernel bounds the size.
BUFFER_BYTES = 1 << 20
MILLISECONDS, MICROSECONDS = 1_000, 1_000_000
LATE = "the lane did not answer in time"
# The flags of a call that must not block: the lane keeps its own deadlines.
AT_ONCE = int(socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
# Errors that break a lane. A timeout breaks it too.
BREAKS = (OSError, EOFError, BrokenFrames, DecodeError)
# The size of one receive. An answer with thousands of slots fits.
CHUNK_BYTES = 1 << 16

# The most heads of calls that a lane caches.
MOST_HEADS = 32

_open: "WeakSet[Lane]" = WeakSet()


class _Posted(NamedTuple):
    """A sent call: the deadline of its answer, and the callback that learns the result."""

    deadline: Deadline
    on_result: Callable[[bool], None]


class Lane:
    """A lane: call :meth:`open` first, then use it on one thread at a time.

    Any thread may call :meth:`shut`. The store starts a lane's calls in the order of their
    sending. After an error that is no refusal the lane is broken: call :meth:`close`, then
    :meth:`forfeit`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        # The same connection, with the timeouts of receives. A timeout on the socket that sends
        # would poll before each send.
        self._receiver = self._socket.dup()
        self._numbers: dict[str, int] = {}
        # By method and timeout: most calls repeat an earlier pair.
        self._heads: dict[tuple[str, float], bytes] = {}
        self._posted: deque[_Posted] = deque()
        # Counts of posted calls and of answers read. Both only grow, so another thread may
        # compare them.
        self.posted_count = self.read_count = 0
        # Received bytes of the next answer.
        self._left = b""
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        _open.add(self)

    def open(self, name: str, lease_id: bytes, secret: bytes, deadline: Deadline) -> None:
        """Connects under a lease that this process is attached to; raises ``StoreError``."""
        hello = attach_pb2.Hello(protocol_version=PROTOCOL_VERSION, display_name=name)
        opening = attach_pb2.OpenLane(lease_id=lease_id, lease_secret=secret)
        with _typed("the lane was not opened in time"):
            self._socket.settimeout(deadline.remaining())
            self._socket.connect(str(self._path))
            send(self._socket, attach_pb2.ClientFrame(hello=hello))
            self._answer("welcome", deadline)
            send(self._socket, attach_pb2.ClientFrame(open_lane=opening))
            methods = self._answer("lane_opened", deadline).lane_opened.methods
            # From now on each call sets its own timeout, or polls first.
            self._socket.settimeout(None)
        self._numbers = {path: number for number, path in enumerate(methods)}

    def takes(self, method: str) -> bool:
        """Returns whether the lane can call a method, given by its gRPC path."""
        return method in self._numbers

    @property
    def unread_count(self) -> int:
        """The number of posted calls with unread answers."""
        return len(self._posted)

    def call(self, method: str, request: Sequence[bytes], timeout: float) -> bytes:
        """Returns a method's response; raises ``StoreError``. ``request`` is in pieces.

        First reads the answers to earlier posted calls. ``timeout`` starts after the first
        send, which does not block.
        """
        pieces = self._framed(method, request, timeout)
        try:
            try:
                sent = self._socket.sendmsg(pieces, (), AT_ONCE)
            except BlockingIOError:
                sent = 0
            # The time starts here, because the send above does not block.
            deadline = Deadline(timeout)
            if sent < sum(map(len, pieces)):
                self._send_rest(pieces, sent, deadline)
            while self._posted:
                self._read_posted(deadline)
            head, body = self._receive(deadline)
            if self._left:
                _require_none(self._left)
            answer = attach_pb2.LaneAnswer.FromString(head) if head else None
        except TimeoutError:
            raise StoreTimedOut(LATE) from None
        except BREAKS as error:
            raise _broken(error) from None
        if answer is not None and answer.HasField("status"):
            raise error_of_status(answer.status)
        return body

    def post(
        self,
        method: str,
        request: Sequence[bytes],
        timeout: float,
        on_result: Callable[[bool], None],
    ) -> bool:
        """Sends a call whose answer is read later.

        Returns False and sends nothing if the send would block. The lane calls ``on_result`` once
        with the success, when it reads the answer or in :meth:`forfeit`. It does so also
        after this method raised ``StoreUnavailable``.
        """
        pieces = self._framed(method, request, timeout)
        self._posted.append(_Posted(Deadline(timeout), on_result))
        try:
            sent = self._socket.sendmsg(pieces, (), AT_ONCE)
        except BlockingIOError:
            self._posted.pop()
            return False
        except OSError as error:
            raise _broken(error) from None
        if sent < sum(map(len, pieces)):
            raise StoreUnavailable("the lane: a call was not taken whole")
        self.posted_count += 1
        return True

    def collect(self, seconds: float = 0.0) -> None:
        """Reads answers to posted calls that arrived or arrive within ``seconds`` each.

        Raises ``StoreError`` if an answer misses its own deadline, or the lane is broken.
        """
        with _typed(LATE):
            while self._posted and self._has_something(seconds):
                self._read_posted(self._posted[0].deadline)
            if self._posted:
                self._posted[0].deadline.remaining()

    def forfeit(self) -> None:
        """Reports a failure for every posted call with an unread answer."""
        while self._posted:
            self._posted.popleft().on_result(False)  # noqa: FBT003  # the result

    def shut(self) -> None:
        """Ends every call over the lane. Any thread may call it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the lane. Can be repeated."""
        self._socket.close()
        self._receiver.close()

    def _answer(self, kind: str, deadline: Deadline) -> attach_pb2.ServerFrame:
        self._socket.settimeout(deadline.remaining())
        frame, descriptors = receive(self._socket)
        close_all(descriptors)
        if frame.HasField("refused"):
            raise error_of_status(frame.refused)
        if not frame.HasField(kind):
            raise BrokenFrames(f"{frame.WhichOneof('message')} came in the place of {kind}")
        return frame

    def _framed(self, method: str, request: Sequence[bytes], timeout: float) -> list[bytes]:
        head = None if tracing.ON else self._heads.get((method, timeout))
        if head is None:
            head = attach_pb2.LaneCall(
                method=self._numbers[method],
                timeout_us=int(timeout * MICROSECONDS) or 1,
                request_id=tracing.traceparent() if tracing.ON else "",
            ).SerializeToString()
            if len(self._heads) >= MOST_HEADS:
                self._heads.clear()
            if not tracing.ON:
                self._heads[method, timeout] = head
        return [LENGTHS.pack(len(head), sum(map(len, request))) + head, *request]

    def _read_posted(self, deadline: Deadline) -> None:
        """Reads the next posted call's answer and reports it. A refusal is a failure."""
        head, _ = self._receive(deadline)
        refused = head and attach_pb2.LaneAnswer.FromString(head).HasField("status")
        self.read_count += 1
        self._posted.popleft().on_result(not refused)

    def _has_something(self, seconds: float) -> bool:
        return bool(self._left or self._poll.poll(math.ceil(seconds * MILLISECONDS)))

    def _send_rest(self, pieces: Sequence[bytes], sent: int, deadline: Deadline) -> None:
        """Sends the bytes after the first ``sent`` of all pieces. May block."""
        for piece in pieces:
            if sent < len(piece):
                self._socket.settimeout(deadline.remaining())
                self._socket.sendall(memoryview(piece)[sent:], socket.MSG_NOSIGNAL)
            sent = max(0, sent - len(piece))
        self._socket.settimeout(None)

    def _receive(self, deadline: Deadline) -> tuple[bytes, bytes]:
        """Returns an answer's head and body. Copies each byte once if one receive has it all."""
        data = self._left or self._chunk(CHUNK_BYTES, deadline)
        while len(data) < LENGTHS.size:
            data += self._chunk(LENGTHS.size - len(data), deadline)
        head_bytes, body_bytes = LENGTHS.unpack_from(data)
        if head_bytes + body_bytes > MAX_FRAME_BYTES:
            raise BrokenFrames(f"an answer of {body_bytes} bytes is over {MAX_FRAME_BYTES}")
        body_at = LENGTHS.size + head_bytes
        end = body_at + body_bytes
        if len(data) < end:
            received = bytearray(data)
            while len(received) < end:
                received += self._chunk(end - len(received), deadline)
            data = bytes(received)
        self._left = data[end:]
        return data[LENGTHS.size : body_at], data[body_at:end]

    def _chunk(self, most: int, deadline: Deadline) -> bytes:
        """Returns the next received bytes, at least one."""
        # Python's timeout of a socket goes on after a signal. The kernel's would restart.
        self._receiver.settimeout(deadline.remaining())
        data = self._receiver.recv(most)
        if not data:
            raise EOFError("the store hung up")
        return data


@contextlib.contextmanager
def _typed(late: str) -> Generator[None, None, None]:
    """Converts a socket's errors into ``StoreError``."""
    try:
        yield
    except TimeoutError:
        raise StoreTimedOut(late) from None
    except BREAKS as error:
        raise _broken(error) from None


def _require_none(data: bytes) -> None:
    if data:
        raise BrokenFrames("more came than an answer")


def _broken(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"the lane: {error}")


def _close_inherited() -> None:
    """Closes the copies of lanes in a forked child: only the parent uses them."""
    for lane in list(_open):
        lane.close()


os.register_at_fork(after_in_child=_close_inherited)
