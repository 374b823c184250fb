"""Frames of the attach socket."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.v1 import attach_pb2
from kvstore_client.calls.blocking_frames import (
    MAX_DESCRIPTORS,
    MAX_FRAME_BYTES,
    BrokenFrames,
    receive_frame,
    send_frame,
)
from processes.open_descriptors import open_descriptors
from wire.scripted_store import LENGTH

FRAME = attach_pb2.ServerFrame(bound=attach_pb2.Bound(pid=7))


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Provides both ends of a stream, the client's first."""
    pair = socket.socketpair()
    yield pair
    for end in pair:
        end.close()


@pytest.fixture
def null() -> Iterator[int]:
    """Provides a descriptor to send."""
    with Path("/dev/null").open("rb") as file:
        yield file.fileno()


def framed(frame: attach_pb2.ServerFrame = FRAME) -> bytes:
    """Returns a frame's bytes."""
    body = frame.SerializeToString()
    return LENGTH.pack(len(body)) + body


def test_a_frame_is_a_length_and_a_message(sockets: tuple[socket.socket, socket.socket]) -> None:
    """A frame is a little-endian length and then the message."""
    client, server = sockets
    frame = attach_pb2.ClientFrame(hello=attach_pb2.Hello(protocol_version=1))
    send_frame(client, frame)
    body = frame.SerializeToString()
    assert server.recv(100) == len(body).to_bytes(4, "little") + body


def test_frames_come_one_by_one(sockets: tuple[socket.socket, socket.socket]) -> None:
    """Two frames that arrived together are received one after the other."""
    client, server = sockets
    other = attach_pb2.ServerFrame(retire=attach_pb2.Retire(extent_ids=[1]))
    server.sendall(framed() + framed(other))
    assert receive_frame(client) == (FRAME, [])
    assert receive_frame(client) == (other, [])


def test_descriptors_belong_to_their_frame(sockets: tuple[socket.socket, socket.socket]) -> None:
    """Descriptors belong to the frame whose first byte carried them, and are close-on-exec."""
    client, server = sockets
    server.sendall(framed())
    socket.send_fds(server, [framed()], [0] * MAX_DESCRIPTORS)
    socket.send_fds(server, [framed()], [1])
    assert receive_frame(client)[1] == []
    many, one = receive_frame(client)[1], receive_frame(client)[1]
    assert (len(many), len(one)) == (MAX_DESCRIPTORS, 1)
    assert not any(os.get_inheritable(each) for each in many + one)
    for each in many + one:
        os.close(each)


def test_too_many_descriptors_break_the_stream(
    sockets: tuple[socket.socket, socket.socket], null: int
) -> None:
    """A frame with more descriptors than the protocol allows is refused, and none stays open."""
    client, server = sockets
    before = open_descriptors("/dev/null")
    socket.send_fds(server, [framed()], [null] * (MAX_DESCRIPTORS + 2))
    with pytest.raises(BrokenFrames, match="descriptors"):
        receive_frame(client)
    assert open_descriptors("/dev/null") <= before


@pytest.mark.parametrize(
    "data", [LENGTH.pack(MAX_FRAME_BYTES + 1), LENGTH.pack(2) + b"\xff\xff"], ids=["long", "none"]
)
def test_what_is_no_frame_breaks_the_stream(
    sockets: tuple[socket.socket, socket.socket], null: int, data: bytes
) -> None:
    """A length over the limit and an unreadable message are refused, and nothing stays open."""
    client, server = sockets
    before = open_descriptors("/dev/null")
    socket.send_fds(server, [data], [null])
    with pytest.raises(BrokenFrames):
        receive_frame(client)
    assert open_descriptors("/dev/null") <= before


@pytest.mark.parametrize("count", [0, 2, 5])
def test_an_end_is_seen_between_and_within_frames(
    sockets: tuple[socket.socket, socket.socket], null: int, count: int
) -> None:
    """A hang-up raises EOFError, between frames and within one."""
    client, server = sockets
    before = open_descriptors("/dev/null")
    if count:
        socket.send_fds(server, [framed()[:count]], [null])
    server.shutdown(socket.SHUT_RDWR)
    with pytest.raises(EOFError):
        receive_frame(client)
    assert open_descriptors("/dev/null") <= before
