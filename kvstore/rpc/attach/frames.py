"""Frames of the attach socket: a length, a message, and descriptors with its first byte.

The length is a little-endian uint32. Sockets may be blocking or not. Not thread-safe: a connection
has one reader and one writer.
"""

import os
import socket
import struct
from array import array
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from kvstore.errors import LimitExceeded

MAX_FRAME_BYTES = 16 << 20
# Descriptors with a frame; the kernel takes up to 253.
MAX_DESCRIPTORS = 64
LENGTH = struct.Struct("<I")
# Bytes read at a time. A frame takes memory only as it arrives, whatever length it announced.
CHUNK_BYTES = 1 << 16
ITEM_BYTES = array("i").itemsize


class Frame(NamedTuple):
    """One message, and the descriptors that came with it, which the receiver closes."""

    payload: bytes
    descriptors: tuple[int, ...]


class FrameReader:
    """Reads frames from a socket, in whatever pieces they arrive.

    A frame may bring ``max_descriptors``. With zero the kernel drops all descriptors that a peer
    sends, and nothing has to be closed.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_descriptors: int = 0,
    ) -> None:
        self._connection = connection
        self._max_frame_bytes = max_frame_bytes
        self._max_descriptors = max_descriptors
        self._buffer = bytearray()
        self._descriptors: list[int] = []

    def read(self) -> Frame | None:
        """Returns the next frame, or None if its rest has not arrived yet.

        Never reads beyond the frame, so that descriptors belong to the frame they came with.
        Raises :class:`EOFError` if the peer hung up, between frames or within one. Raises
        :class:`LimitExceeded` for a frame or descriptors beyond the bounds; the stream is useless
        then. Raises OSError as the socket does.
        """
        while (missing := self._missing()) > 0:
            if not self._receive(min(missing, CHUNK_BYTES)):
                return None
        frame = Frame(bytes(self._buffer[LENGTH.size :]), tuple(self._descriptors))
        self._buffer.clear()
        self._descriptors.clear()
        return frame

    def close(self) -> None:
        """Closes the descriptors of a frame that is not complete."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _missing(self) -> int:
        """Returns the number of bytes that the frame lacks; at first those of its length."""
        if len(self._buffer) < LENGTH.size:
            return LENGTH.size - len(self._buffer)
        (length,) = LENGTH.unpack_from(self._buffer)
        if length > self._max_frame_bytes:
            raise LimitExceeded(limit="frame_bytes", maximum=self._max_frame_bytes, value=length)
        return LENGTH.size + int(length) - len(self._buffer)

    def _receive(self, count: int) -> bool:
        """Reads up to ``count`` bytes; returns False if none are there yet."""
        try:
            if self._max_descriptors == 0:
                data = self._connection.recv(count)
            else:
                data = self._receive_with_descriptors(count)
        except BlockingIOError:
            return False
        if not data:
            raise EOFError
        self._buffer += data
        return True

    def _receive_with_descriptors(self, count: int) -> bytes:
        # Not socket.recv_fds, which drops its flags, and with them close-on-exec.
        data, ancillary, flags, _ = self._connection.recvmsg(
            count, socket.CMSG_SPACE(self._max_descriptors * ITEM_BYTES), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                whole = len(payload) - len(payload) % ITEM_BYTES
                self._descriptors.extend(array("i", payload[:whole]))
        if flags & socket.MSG_CTRUNC or len(self._descriptors) > self._max_descriptors:
            raise LimitExceeded(limit="frame_descriptors", maximum=self._max_descriptors)
        return data


class FrameWriter:
    """Sends frames as the socket takes them; the others wait in order."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._waiting: deque[tuple[memoryview, tuple[int, ...]]] = deque()

    def push(self, payload: bytes, descriptors: Iterable[int] = ()) -> None:
        """Adds a frame to those that wait. Its descriptors are duplicated until they are sent.

        ``payload`` MUST be at most 16 MiB, with at most 64 descriptors.
        """
        copies: list[int] = []
        try:
            copies.extend(os.dup(each) for each in descriptors)
        except OSError:
            _close_all(copies)
            raise
        frame = LENGTH.pack(len(payload)) + payload
        self._waiting.append((memoryview(frame), tuple(copies)))

    def flush(self) -> bool:
        """Sends as much as the socket takes; returns True if nothing waits any more.

        Raises OSError as the socket does, most often because the peer is gone.
        """
        while self._waiting:
            data, descriptors = self._waiting[0]
            ancillary = []
            if descriptors:
                ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors)))
            try:
                sent = self._connection.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            _close_all(descriptors)
            if sent == len(data):
                self._waiting.popleft()
            else:
                self._waiting[0] = (data[sent:], ())
        return True

    def close(self) -> None:
        """Drops waiting frames and closes their descriptors."""
        while self._waiting:
            _close_all(self._waiting.popleft()[1])


def _close_all(descriptors: Iterable[int]) -> None:
    for each in descriptors:
        os.close(each)
