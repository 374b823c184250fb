"""Frames over real sockets."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kvstore.errors import LimitExceeded
from kvstore.rpc.attach.frames import LENGTH, Frame, FrameReader, FrameWriter
from processes.open_descriptors import open_descriptors


class Ends(NamedTuple):
    """Both ends of a connection, non-blocking."""

    near: socket.socket
    far: socket.socket


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Provides a connection."""
    near, far = socket.socketpair(socket.AF_UNIX)
    for each in (near, far):
        each.settimeout(0)
    with near, far:
        yield Ends(near, far)


def test_frames_come_as_they_were_sent(ends: Ends) -> None:
    """Several frames sent at once are read one by one, including an empty one."""
    writer, reader = FrameWriter(ends.near), FrameReader(ends.far)
    for payload in (b"one", b"", b"three"):
        writer.push(payload)
    assert writer.flush()
    frames = [reader.read() for _ in range(4)]
    assert frames == [Frame(b"one", ()), Frame(b"", ()), Frame(b"three", ()), None]


def test_a_frame_in_pieces_is_read_when_it_is_whole(ends: Ends) -> None:
    """A frame is read once and whole, even if it arrives byte by byte."""
    reader = FrameReader(ends.far)
    data = LENGTH.pack(3) + b"abc"
    for index in range(len(data) - 1):
        ends.near.send(data[index : index + 1])
        assert reader.read() is None
    ends.near.send(data[-1:] + LENGTH.pack(1))
    assert reader.read() == Frame(b"abc", ())
    assert reader.read() is None


def test_what_the_socket_does_not_take_waits(ends: Ends) -> None:
    """A frame larger than the socket's buffer is sent in parts as the peer reads."""
    payload = os.urandom(3 << 20)
    writer, reader = FrameWriter(ends.near), FrameReader(ends.far)
    writer.push(payload)
    writer.push(b"next")
    assert not writer.flush()
    frames: list[Frame] = []
    while len(frames) < 2:
        frame = reader.read()
        frames += [frame] if frame else []
        writer.flush()
    assert [frame.payload for frame in frames] == [payload, b"next"]


def test_descriptors_come_with_the_frame_that_brought_them(ends: Ends) -> None:
    """Each of several queued frames has its own descriptors, in order and close-on-exec."""
    pipes = [os.pipe() for _ in range(3)]
    writer, reader = FrameWriter(ends.near), FrameReader(ends.far, max_descriptors=2)
    writer.push(b"none")
    writer.push(b"two", [pipes[0][1], pipes[1][1]])
    writer.push(b"one", [pipes[2][1]])
    writer.flush()
    frames = [frame for frame in iter(reader.read, None) if frame]
    assert [len(frame.descriptors) for frame in frames] == [0, 2, 1]
    received = [each for frame in frames for each in frame.descriptors]
    for (readable, _), descriptor in zip(pipes, received, strict=True):
        assert not os.get_inheritable(descriptor)
        os.write(descriptor, b"x")
        assert os.read(readable, 1) == b"x"
    for each in (*received, *(end for pipe in pipes for end in pipe)):
        os.close(each)


def test_a_waiting_frame_keeps_its_descriptors_open(ends: Ends) -> None:
    """A waiting frame keeps its descriptors open after their owner closes them."""
    writer, reader = FrameWriter(ends.near), FrameReader(ends.far, max_descriptors=1)
    readable, writable = os.pipe()
    writer.push(bytes(1 << 20))
    writer.push(b"pipe", [writable])
    assert not writer.flush()
    os.close(writable)
    frames: list[Frame] = []
    while len(frames) < 2:
        frame = reader.read()
        frames += [frame] if frame else []
        writer.flush()
    (received,) = frames[1].descriptors
    os.write(received, b"same")
    assert os.read(readable, 9) == b"same"
    for each in (readable, received):
        os.close(each)


def test_nothing_is_left_open(ends: Ends) -> None:
    """Descriptors are closed after a frame is sent, dropped while waiting, or received in part."""
    before = open_descriptors("/dev/null")
    writer, reader = FrameWriter(ends.near), FrameReader(ends.far, max_descriptors=1)
    with Path("/dev/null").open("rb") as null:
        writer.push(bytes(1 << 20), [null.fileno()])
        writer.push(b"next", [null.fileno()])
        assert not writer.flush()
    assert reader.read() is None
    reader.close()
    writer.close()
    assert open_descriptors("/dev/null") <= before


def test_unwanted_descriptors_are_dropped_by_the_kernel(ends: Ends) -> None:
    """The kernel drops descriptors that a peer sends to a reader that accepts none."""
    before = open_descriptors("/dev/null")
    with Path("/dev/null").open("rb") as null:
        socket.send_fds(ends.near, [LENGTH.pack(1) + b"x"], [null.fileno()] * 9)
    assert FrameReader(ends.far).read() == Frame(b"x", ())
    assert open_descriptors("/dev/null") <= before


def test_too_many_descriptors_break_the_stream(ends: Ends) -> None:
    """More descriptors than a frame may have are refused, and none is left open."""
    before = open_descriptors("/dev/null")
    reader = FrameReader(ends.far, max_descriptors=2)
    with Path("/dev/null").open("rb") as null:
        socket.send_fds(ends.near, [LENGTH.pack(1) + b"x"], [null.fileno()] * 9)
    with pytest.raises(LimitExceeded):
        reader.read()
    reader.close()
    assert open_descriptors("/dev/null") <= before


def test_an_oversize_frame_is_refused_by_its_length(ends: Ends) -> None:
    """A frame that is too long is refused by its length, before any of it is read."""
    reader = FrameReader(ends.far, max_frame_bytes=10)
    ends.near.send(LENGTH.pack(10) + bytes(10) + LENGTH.pack(11))
    assert reader.read() == Frame(bytes(10), ())
    with pytest.raises(LimitExceeded) as refused:
        reader.read()
    assert refused.value.metadata == {"limit": "frame_bytes", "maximum": "10", "value": "11"}


@pytest.mark.parametrize("data", [b"", b"\x05", LENGTH.pack(5) + b"half"])
def test_a_hang_up_is_the_end_wherever_it_comes(ends: Ends, data: bytes) -> None:
    """The end of a stream is reported whether it comes between frames or within one."""
    ends.near.send(data)
    ends.near.close()
    with pytest.raises(EOFError):
        FrameReader(ends.far).read()


def test_a_writer_notices_that_its_peer_is_gone(ends: Ends) -> None:
    """Sending to a closed socket raises an error instead of a signal."""
    writer = FrameWriter(ends.near)
    ends.far.close()
    writer.push(b"anybody?")
    with pytest.raises(BrokenPipeError):
        writer.flush()
    writer.close()


def test_a_descriptor_that_is_none_is_not_put_in_line(ends: Ends) -> None:
    """A frame whose descriptors cannot be duplicated is not sent and leaves nothing open."""
    before = open_descriptors("/dev/null")
    writer = FrameWriter(ends.near)
    with Path("/dev/null").open("rb") as null, pytest.raises(OSError, match="descriptor"):
        writer.push(b"x", [null.fileno(), 1 << 20])
    assert writer.flush()
    assert FrameReader(ends.far).read() is None
    assert open_descriptors("/dev/null") <= before
