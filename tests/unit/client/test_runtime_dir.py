"""The folder of a store's sockets."""

import os
import socket
from pathlib import Path

import pytest

from kvstore_client.runtime_dir import RuntimeDir, default_runtime_dir


def test_the_default_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default folder is in the store's variable, else in the session's folder, else in /tmp."""
    monkeypatch.setenv("KVSTORE_RUNTIME_DIR", "/a")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/b")
    assert default_runtime_dir() == Path("/a")
    monkeypatch.delenv("KVSTORE_RUNTIME_DIR")
    assert default_runtime_dir() == Path("/b/kvstore")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_runtime_dir() == Path("/", "tmp", f"kvstore-{os.geteuid()}")


def test_paths_are_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A relative folder is resolved against the current folder at once."""
    monkeypatch.chdir(tmp_path)
    paths = RuntimeDir("x")
    assert paths.attach_socket == tmp_path / "x" / "attach.sock"
    assert paths.grpc_target == f"unix:{tmp_path}/x/kvstore.sock"


def test_a_socket_at_which_nobody_listens_is_known(tmp_path: Path) -> None:
    """It is that of a server that was killed. A listener is busy if its queue is full."""
    paths = RuntimeDir(tmp_path / "x")
    assert not paths.is_served()
    paths.path.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(paths.attach_socket))
        assert not paths.is_served()
        listener.listen(0)
        assert [paths.is_served() for _ in range(3)] == [True] * 3
    assert not paths.is_served()
    assert paths.attach_socket.exists()


def test_a_path_too_long_for_a_socket_is_refused() -> None:
    """A folder whose socket paths are too long for a socket is refused at once."""
    longest = "/" + "x" * (107 - len("/" + "/kvstore.sock"))
    assert RuntimeDir(longest).path == Path(longest)
    with pytest.raises(ValueError, match="107"):
        RuntimeDir(longest + "x")
