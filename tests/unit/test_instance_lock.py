"""The lock by which a folder has one server at most."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.instance_lock import (
    InstanceLock,
    InstanceRunning,
    ReplacementLock,
    is_replaced,
)
from kvstore.runtime_dir import RuntimeDir, UnusableRuntimeDir

HOLDER = """
import sys
from pathlib import Path
from kvstore.instance_lock import InstanceLock, ReplacementLock
from kvstore.runtime_dir import RuntimeDir
runtime_dir = RuntimeDir(Path(sys.argv[1]))
with globals()[sys.argv[2]](runtime_dir):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def runtime_dir(tmp_path: Path) -> RuntimeDir:
    """Provides a folder that does not exist yet."""
    return RuntimeDir(tmp_path / "run")


def test_a_second_one_is_refused_and_told_who_holds_it(runtime_dir: RuntimeDir) -> None:
    """A second server is refused with the holder's pid, and leaves the sockets as they are."""
    with InstanceLock(runtime_dir), socket.socket(socket.AF_UNIX) as living:
        living.bind(str(runtime_dir.grpc_socket))
        with (
            pytest.raises(InstanceRunning, match=rf"pid {os.getpid()}\)"),
            InstanceLock(runtime_dir),
        ):
            pass
        assert runtime_dir.grpc_socket.is_socket()
        assert runtime_dir.flock_file.read_text() == f"{os.getpid()}\n"


def test_it_can_be_had_again_and_leaves_no_socket(runtime_dir: RuntimeDir) -> None:
    """After the server's end the folder is free again, with the lock file and no sockets."""
    for _ in range(2):
        with InstanceLock(runtime_dir), socket.socket(socket.AF_UNIX) as living:
            living.bind(str(runtime_dir.attach_socket))
        assert [each.name for each in runtime_dir.path.iterdir()] == ["kvstore.flock"]


def test_a_file_in_the_way_is_told_and_the_lock_given_up(runtime_dir: RuntimeDir) -> None:
    """A file at a socket's path is left there and refused. Without it the folder can be locked."""
    runtime_dir.prepare()
    runtime_dir.grpc_socket.touch()
    with pytest.raises(UnusableRuntimeDir), InstanceLock(runtime_dir):
        pass
    runtime_dir.grpc_socket.unlink()
    with InstanceLock(runtime_dir):
        pass


def test_a_killed_holder_leaves_nothing_to_remove(runtime_dir: RuntimeDir) -> None:
    """A killed server's lock ends with its process, and the next server removes its sockets."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(runtime_dir.path), "InstanceLock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InstanceRunning, match=f"pid {holder.pid}"), InstanceLock(runtime_dir):
            pass
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(str(runtime_dir.grpc_socket))
        holder.send_signal(signal.SIGKILL)
        holder.wait(30)
    with InstanceLock(runtime_dir):
        assert not runtime_dir.grpc_socket.exists()


def test_one_server_at_a_time_may_replace(runtime_dir: RuntimeDir) -> None:
    """A second one is refused while the first one waits."""
    runtime_dir.prepare()
    assert not is_replaced(runtime_dir)
    with ReplacementLock(runtime_dir):
        assert is_replaced(runtime_dir)
        with (
            pytest.raises(InstanceRunning, match="about to replace"),
            ReplacementLock(runtime_dir),
        ):
            pass
    assert not is_replaced(runtime_dir)


def test_a_dead_server_replaces_nobody(runtime_dir: RuntimeDir) -> None:
    """The kernel gives the lock up."""
    runtime_dir.prepare()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(runtime_dir.path), "ReplacementLock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert is_replaced(runtime_dir)
        other.kill()
    assert not is_replaced(runtime_dir)
