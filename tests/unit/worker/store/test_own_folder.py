"""A store of one's own uses the folder of the environment if that folder is usable."""

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_worker.store.folders import named_folder
from inference_worker.store.own_store import ServeStore, StoreOptions


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A named folder that does not exist yet, with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="kvstore-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("KVSTORE_RUNTIME_DIR", f"{folder}/run")
        yield Path(folder, "run")


def own() -> Path:
    """Returns the folder of the sockets of a --start-store store."""
    return ServeStore(StoreOptions(start=True)).path


def test_it_is_where_kvstore_ctl_looks(named: Path) -> None:
    """The folder is used if it exists or not, and a lock that nobody holds does not matter."""
    assert own() == named
    named.mkdir(mode=0o700)
    assert own() == named
    (named / "kvstore.flock").touch()
    assert own() == named


def test_what_a_server_holds_is_left_to_it(named: Path) -> None:
    """A store uses another folder if a server holds the lock of the named one."""
    named.mkdir(mode=0o700)
    with (named / "kvstore.flock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert own().parent.name.startswith("kvstore-serve-")
    assert own() == named


def test_what_a_server_would_refuse_is_left_alone(named: Path) -> None:
    """A folder that is open to others, a link and a file are not used."""
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
    """Without a name the folder is temporary. A name that is too long for a socket is an error."""
    monkeypatch.delenv("KVSTORE_RUNTIME_DIR", raising=False)
    assert named_folder() is None
    monkeypatch.setenv("KVSTORE_RUNTIME_DIR", "/" + "x" * 200)
    with pytest.raises(ValueError, match="longer than a socket"):
        named_folder()
