"""Frames of the attach socket: a length, a message, descriptors with its first byte."""

import os
import socket
from array import array

from google.protobuf.message import DecodeError

from kvstore.v1 import attach_pb2

MAX_FRAME_BYTES = 16 << 20
# The protocol's bound on the descriptors of one frame, two for each of its extents.
MAX_DESCRIPTORS = 64
LENGTH_BYTES = 4


class BrokenFrames(Exception):
    """A received frame was invalid: the connection cannot be used any more."""


def send_frame(connection: socket.socket, frame: attach_pb2.ClientFrame) -> None:
    """Sends one frame; raises ``OSError``."""
    body = frame.SerializeToString()
    connection.sendall(len(body).to_bytes(LENGTH_BYTES, "little") + body)


def receive_frame(connection: socket.socket) -> tuple[attach_pb2.ServerFrame, list[int]]:
    """Receives one frame and its descriptors, which are the caller's to close.

    Descriptors are close-on-exec. The function never reads beyond the frame, so each
    descriptor belongs to its frame. Raises ``EOFError`` if the peer hung up,
    :class:`BrokenFrames`, or ``OSError``, and then leaves no descriptor open.
    """
    descriptors: list[int] = []
    try:
        length = int.from_bytes(_receive(connection, LENGTH_BYTES, descriptors), "little")
        _check_length(length)
        body = _receive(connection, length, descriptors)
        return attach_pb2.ServerFrame.FromString(body), descriptors
    except DecodeError as error:
        close_all(descriptors)
        raise BrokenFrames("a frame is no ServerFrame") from error
    except BaseException:
        close_all(descriptors)
        raise


def _check_length(length: int) -> None:
    if length > MAX_FRAME_BYTES:
        raise BrokenFrames(f"a frame of {length} bytes is over {MAX_FRAME_BYTES}")


def close_all(descriptors: list[int]) -> None:
    """Closes the descriptors and empties the list."""
    while descriptors:
        os.close(descriptors.pop())


def _receive(connection: socket.socket, count: int, descriptors: list[int]) -> bytes:
    received = bytearray()
    item = array("i").itemsize
    while len(received) < count:
        data, ancillary, flags, _ = connection.recvmsg(
            count - len(received),
            socket.CMSG_SPACE(MAX_DESCRIPTORS * item),
            socket.MSG_CMSG_CLOEXEC,
        )
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.extend(array("i", payload[: len(payload) - len(payload) % item]))
        if flags & socket.MSG_CTRUNC:
            raise BrokenFrames(f"a frame came with more than {MAX_DESCRIPTORS} descriptors")
        if not data:
            raise EOFError("the store hung up")
        received += data
    return bytes(received)
