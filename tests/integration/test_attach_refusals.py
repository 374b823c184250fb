"""The attach socket and peers that are wrong, silent, slow or too many."""

import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from kvstore.rpc.attach.connection import Connection
from kvstore.rpc.attach.event_loop import SWEEP_FROM, Timer
from kvstore.rpc.attach.frames import LENGTH
from kvstore.rpc.attach.server import PAUSE
from kvstore.service.log_budget import RATE, LogBudget
from kvstore.v1 import attach_pb2
from kvstore_client.testing import wait_until
from processes.in_memory import count_of
from stores.store_world import IDENTITY
from wire.attach_peer import LIMIT, AttachPeer
from wire.attach_rig import SECRET, AttachRig, extent_ids, has_ended, reason_of


def test_a_connection_has_one_lease_at_a_time(rig: AttachRig) -> None:
    """Binding a second lease is refused while the first one is bound."""
    rig.serve()
    peer = rig.bound(rig.lease())
    other = rig.lease()
    assert reason_of(peer.bind(other.lease_id, SECRET)) == "INVALID_FIELD"
    assert has_ended(peer)


def test_a_wrong_secret_is_refused(rig: AttachRig) -> None:
    """A process with a wrong lease secret is not attached, and its attempt leaves nothing."""
    rig.serve()
    caller = rig.lease()
    peer = rig.connect()
    peer.hello()
    assert reason_of(peer.bind(caller.lease_id, b"another secret..")) == "LEASE_NOT_FOUND"
    assert has_ended(peer)
    assert rig.processes() == []
    rig.bound(caller)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (attach_pb2.ClientFrame(), "INVALID_FIELD"),
        (attach_pb2.ClientFrame(bind=attach_pb2.Bind()), "INVALID_FIELD"),
        (attach_pb2.ClientFrame(acknowledge=attach_pb2.Acknowledge()), "INVALID_FIELD"),
        (attach_pb2.ClientFrame(hello=attach_pb2.Hello(protocol_version=2)), "INVALID_FIELD"),
        (
            attach_pb2.ClientFrame(hello=attach_pb2.Hello(protocol_version=1, cuda_mps=True)),
            "PEER_REFUSED",
        ),
    ],
)
def test_a_peer_that_begins_wrongly_is_refused(
    rig: AttachRig, frame: attach_pb2.ClientFrame, reason: str
) -> None:
    """A peer that does not begin with a current Hello, or uses CUDA MPS, is refused."""
    rig.serve()
    peer = rig.connect()
    peer.send(frame)
    assert reason_of(peer.receive()[0]) == reason
    assert has_ended(peer)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (LENGTH.pack(4) + b"\xff\xff\xff\xff", "INVALID_FIELD"),
        (LENGTH.pack((64 << 10) + 1), "LIMIT_EXCEEDED"),
        (LENGTH.pack(0), "INVALID_FIELD"),
    ],
)
def test_what_is_no_frame_is_refused(rig: AttachRig, data: bytes, reason: str) -> None:
    """Unreadable bytes and too long frames end the connection with a reason."""
    rig.serve()
    peer = rig.connect()
    peer.socket.sendall(data)
    assert reason_of(peer.receive()[0]) == reason
    assert has_ended(peer)


def test_half_a_frame_harms_nobody(rig: AttachRig) -> None:
    """A peer that stops within a frame delays nobody, and may hang up there."""
    rig.serve()
    half = rig.connect()
    half.socket.sendall(LENGTH.pack(100) + b"half")
    assert rig.connect().hello().HasField("welcome")
    half.close()
    assert rig.connect().hello().HasField("welcome")


def test_silent_and_deaf_peers_do_not_stall_others(rig: AttachRig) -> None:
    """A worker is served at once beside 100 connections that never send or never read."""
    rig.serve()
    for number in range(100):
        peer = rig.connect()
        if number % 2:
            flood(peer)
    caller = rig.lease()
    peer = rig.bound(caller)
    rig.world.store.open_namespace(caller, IDENTITY, rig.world.layout)
    assert extent_ids(peer) == [1]


def flood(peer: AttachPeer) -> None:
    """Sends Hellos while the socket takes them, and reads nothing."""
    hello = attach_pb2.Hello(protocol_version=1, display_name="x" * 200)
    body = attach_pb2.ClientFrame(hello=hello).SerializeToString()
    peer.socket.settimeout(0)
    try:
        while True:
            peer.socket.sendall(LENGTH.pack(len(body)) + body)
    except BlockingIOError:
        return


def test_silent_peers_are_ended_in_time(rig: AttachRig) -> None:
    """A peer that never says Hello is disconnected in time. One that did is not."""
    server = rig.serve()
    polite = rig.connect()
    polite.hello()
    # From here on: who means to be polite may be late by more than that.
    server._patience = 0.05
    silent = rig.connect()
    assert has_ended(silent)
    assert polite.hello().HasField("welcome")


def test_too_many_connections_are_turned_away(rig: AttachRig) -> None:
    """A uid beyond its share of connections is refused until one of its connections ends."""
    rig.serve(max_connections=4)
    first = rig.connect()
    assert first.hello().HasField("welcome")
    for _ in range(2):
        # Each is welcome before the next comes: of those that are not there may be one.
        assert rig.connect().hello().HasField("welcome")
    fourth = rig.connect()
    assert reason_of(fourth.receive()[0]) == "QUOTA_EXCEEDED"
    first.close()
    while not welcomed(rig.connect()):
        pass


def test_silent_connections_shut_nobody_out(rig: AttachRig) -> None:
    """However many connections are silent, a peer that says Hello is served and stays connected."""
    rig.serve(max_connections=40)
    caller = rig.lease()
    served = rig.bound(caller)
    silent = [rig.connect() for _ in range(100)]
    late = rig.connect()
    assert late.hello().HasField("welcome")
    # The oldest of the silent went, and no other: ten may be there, and the last one spoke.
    assert all(has_ended(each) for each in silent[:90])
    assert silent[-1].hello().HasField("welcome")
    assert served.bind(caller.lease_id, SECRET).HasField("bound")


def test_who_went_leaves_nothing_in_memory(rig: AttachRig) -> None:
    """A connection that sent half a frame and hung up leaves nothing in memory."""
    rig.serve(patience=1e6)
    before, timers = count_of(Connection), count_of(Timer)
    stayed = rig.connect()
    assert stayed.hello().HasField("welcome")
    half = LENGTH.pack(60_000) + bytes(50_000)
    for _ in range(2 * SWEEP_FROM):
        peer = rig.connect()
        peer.socket.sendall(half)
        peer.close()
    # The thread has come past them all.
    assert stayed.hello().HasField("welcome")
    # But for the one that the thread looked at last.
    assert wait_until(lambda: count_of(Connection) <= before + 2, timeout=LIMIT)
    assert count_of(Timer) <= timers + SWEEP_FROM + 2


def test_a_flood_of_refusals_is_few_lines(rig: AttachRig) -> None:
    """The first refused peers are logged one by one, and the others are counted."""
    with capture_logs() as lines:
        # By a clock that stands still all are of one moment.
        rig.serve()._lines = LogBudget(rig.world.clock)
        for _ in range(60):
            peer = rig.connect()
            peer.socket.sendall(LENGTH.pack(0))
            assert reason_of(peer.receive()[0]) == "INVALID_FIELD"
    written = [each for each in lines if each["event"] == "peer_refused"]
    assert len(written) == RATE


def test_a_peer_that_never_stops_sending_does_not_starve_others(rig: AttachRig) -> None:
    """A peer gets one frame per turn, so an endless sender does not delay other workers."""
    rig.serve()
    endless = rig.bound(rig.lease())
    body = attach_pb2.ClientFrame(unmapped=attach_pb2.Unmapped(extent_ids=[1])).SerializeToString()
    stop = Event()

    def send() -> None:
        with suppress(OSError):
            while not stop.is_set():
                endless.socket.sendall((LENGTH.pack(len(body)) + body) * 100)

    sender = Thread(target=send)
    sender.start()
    try:
        for _ in range(5):
            rig.bound(rig.lease()).close()
    finally:
        stop.set()
        sender.join()
    assert endless.hello().HasField("welcome")


def welcomed(peer: AttachPeer) -> bool:
    """Says Hello and returns whether the answer is Welcome."""
    try:
        return peer.hello().HasField("welcome")
    except (BrokenPipeError, ConnectionResetError):
        return False


def test_descriptors_are_not_needed_to_be_refused_kindly(rig: AttachRig) -> None:
    """Descriptors that a peer sends are dropped, and its frame is answered."""
    rig.serve()
    peer = rig.connect()
    body = attach_pb2.ClientFrame(hello=attach_pb2.Hello(protocol_version=1)).SerializeToString()
    with Path("/dev/null").open("rb") as null:
        socket.send_fds(peer.socket, [LENGTH.pack(len(body)) + body], [null.fileno()] * 5)
    assert peer.receive()[0].HasField("welcome")


def test_a_peer_that_may_be_anybody_is_told_why_it_is_refused(rig: AttachRig) -> None:
    """A peer whose uid the kernel does not know gets the reason in answer to its Hello."""
    server = rig.serve()
    server._overflow_uid = os.getuid()
    peer = rig.connect()
    assert reason_of(peer.hello()) == "PEER_REFUSED"
    assert has_ended(peer)


def failures(lines: list[EventDict]) -> int:
    """Counts the log lines about peers that could not be accepted."""
    return [line["event"] for line in lines].count("accept_failed")


def test_a_server_out_of_descriptors_goes_on_when_it_has_some(rig: AttachRig) -> None:
    """A server without free descriptors accepts waiting peers later, without a busy loop."""
    server = rig.serve()
    peer = rig.unconnected()
    deadline = time.monotonic() + LIMIT
    with capture_logs() as lines, no_more_descriptors():
        begun = time.monotonic()
        peer.connect(rig.path)
        while not failures(lines) and time.monotonic() < deadline:
            assert server.is_alive()
    spent = time.monotonic() - begun
    # As often as it may have looked again before this thread came to look.
    assert 1 <= failures(lines) <= 1 + spent / PAUSE
    assert peer.hello().HasField("welcome")


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    """Prevents this process from opening more descriptors."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
