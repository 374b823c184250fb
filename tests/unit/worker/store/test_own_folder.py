"""A store of one's own is where the environment says, unless that cannot be had."""

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_worker.store.folders import named_folder
from inference_worker.store.own_store import ServeStore, StoreOptions


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that the environment names, not there yet; its path is short, as a socket's is."""
    with tempfile.TemporaryDirectory(prefix="kvstore-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("KVSTORE_RUNTIME_DIR", f"{folder}/run")
        yield Path(folder, "run")


def own() -> Path:
    """Returns where a store of --start-store would have its sockets."""
    return ServeStore(StoreOptions(start=True)).path


def test_it_is_where_kvstore_ctl_looks(named: Path) -> None:
    """Whether the folder is there or not; a lock that nobody holds is nobody's."""
    assert own() == named
    named.mkdir(mode=0o700)
    assert own() == named
    (named / "kvstore.flock").touch()
    assert own() == named


def test_what_a_server_holds_is_left_to_it(named: Path) -> None:
    """Then it has a folder of its own, and the other is as it was."""
    named.mkdir(mode=0o700)
    with (named / "kvstore.flock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert own().parent.name.startswith("kvstore-serve-")
    assert own() == named


def test_what_a_server_would_refuse_is_left_alone(named: Path) -> None:
    """A folder that is open to others, a link, a file."""
    named.mkdir()
    named.chmod(0o750)
    assert named_folder() is None
    named.rmdir()
    named.symlink_to(named.parent)
    assert named_folder() is None
    named.unlink()
    named.touch()
    assert named_folder() is None


def test_nothing_named_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the folder is temporary; a name too long for a socket is an error that says so."""
    monkeypatch.delenv("KVSTORE_RUNTIME_DIR", raising=False)
    assert named_folder() is None
    monkeypatch.setenv("KVSTORE_RUNTIME_DIR", "/" + "x" * 200)
    with pytest.raises(ValueError, match="longer than a socket"):
        named_folder()
