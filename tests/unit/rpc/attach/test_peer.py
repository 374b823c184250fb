"""The identity of the process at the other end of a unix socket."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kvstore.errors import PeerRefused
from kvstore.rpc.attach.peer import identify, overflow_uid, watch
from kvstore.service.attached_processes import has_died

NOBODY = 65534
# Connects to the socket named by its argument, says so, and lives until its input ends.
CONNECT = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
print("connected", flush=True)
sys.stdin.read()
"""


class Listening:
    """A listening socket, and processes that connect to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._children: list[subprocess.Popen[bytes]] = []

    def connect(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Starts a process that connects. Returns it with the accepted end of its connection."""
        child = subprocess.Popen(
            [sys.executable, "-c", CONNECT, str(self._path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"connected\n"
        return child, self._listener.accept()[0]

    def close(self) -> None:
        """Ends the processes and closes the socket."""
        for child in self._children:
            child.kill()
            child.communicate()
        self._listener.close()


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Listening]:
    """Provides a listening socket."""
    with closing(Listening(tmp_path / "s")) as made:
        yield made


def test_a_peer_is_the_process_that_connected(listening: Listening) -> None:
    """A peer's pid, uid and pidfd are those of the process that connected."""
    child, connection = listening.connect()
    with connection:
        peer = identify(connection, overflow=NOBODY)
        assert (peer.pid, peer.uid) == (child.pid, os.getuid())
        assert not os.get_inheritable(peer.pidfd)
        assert not has_died(peer.pidfd)
        child.kill()
        child.wait()
        assert has_died(peer.pidfd)
        peer.close()


def test_a_peer_that_is_gone_is_refused_or_known_to_be_dead(listening: Listening) -> None:
    """A process that died before it is identified is never mistaken for another one."""
    child, connection = listening.connect()
    child.kill()
    child.wait()
    with connection:
        assert is_known_to_be_gone(connection)


def is_known_to_be_gone(connection: socket.socket) -> bool:
    """Returns whether a peer is refused as gone, or its pidfd reports its death."""
    try:
        peer = identify(connection, overflow=NOBODY)
    except PeerRefused as refused:
        return refused.metadata["why"] == "the peer's process is gone"
    with closing(peer):
        return has_died(peer.pidfd)


def test_the_overflow_uid_is_refused(listening: Listening) -> None:
    """A peer with the overflow uid is refused, because that uid stands for all unmapped users."""
    _, connection = listening.connect()
    with connection, pytest.raises(PeerRefused, match="overflow uid"):
        identify(connection, overflow=os.getuid())


def test_the_overflow_uid_is_the_kernels() -> None:
    """The overflow uid is read from the kernel."""
    assert overflow_uid() == int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))


def test_by_number_a_process_is_watched(listening: Listening) -> None:
    """A process can be watched by its pid, for kernels without a peer's pidfd."""
    child, connection = listening.connect()
    connection.close()
    pidfd = watch(child.pid)
    assert not has_died(pidfd)
    child.kill()
    child.wait()
    assert has_died(pidfd)
    os.close(pidfd)
    with pytest.raises(PeerRefused, match="gone"):
        watch(child.pid)


def test_by_number_a_process_of_another_pid_namespace_is_refused() -> None:
    """A peer of an invisible pid namespace has pid 0, and is refused."""
    with pytest.raises(PeerRefused, match="another pid namespace"):
        watch(0)
