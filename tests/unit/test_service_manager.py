"""The messages to a service manager."""

import os
import socket
from pathlib import Path

import pytest

from kvstore.service_manager import ServiceManager


@pytest.mark.parametrize("abstract", [False, True])
def test_it_is_told_by_datagrams(tmp_path: Path, *, abstract: bool) -> None:
    """Messages go to a socket path or an abstract name, as systemd reads them."""
    name = f"@kvstore-{tmp_path.name}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name.replace("@", "\0"))
        receiver.settimeout(30)
        manager = ServiceManager.from_environment({"NOTIFY_SOCKET": name})
        manager.ready()
        manager.alive()
        manager.stopping()
        assert [receiver.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]


def test_without_one_nothing_is_told(tmp_path: Path) -> None:
    """Nothing is sent without a service manager, and a missing listener is no error."""
    ServiceManager.from_environment({}).ready()
    ServiceManager(str(tmp_path / "nobody")).ready()


def test_descriptors_go_with_a_message(tmp_path: Path) -> None:
    """A message with descriptors arrives with copies of them, and raises where nobody listens."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        receiver.settimeout(30)
        ServiceManager(str(path)).send("FDSTORE=1", [receiver.fileno()])
        message, (copy,), _, _ = socket.recv_fds(receiver, 100, 1)
        assert message == b"FDSTORE=1"
        assert os.path.sameopenfile(copy, receiver.fileno())
        os.close(copy)
    for address in (str(path), None):
        with pytest.raises(OSError, match=r"refused|no service manager"):
            ServiceManager(address).send("FDSTORE=1")
