"""The engine on a folder: files are whole, and a lost or closed folder is an error."""

import os
import shutil
from pathlib import Path
from time import monotonic

import pytest

from kvstore.remote.engine import MOST_CONTROL_BYTES, RemoteEngine
from kvstore.remote.errors import (
    CommandForbidden,
    EngineUnreachable,
    RemoteError,
    ReplyMalformed,
)

folder_engine = pytest.importorskip(
    "kvstore.remote.objects.folder_engine", reason="needs the package obstore: run make venv"
)
GENEROUS = 60.0


def put(engine: RemoteEngine, name: bytes) -> RemoteError | None:
    """Writes a value; returns the error that it is told."""
    deadline = monotonic() + GENEROUS
    (told,) = engine.put_many([name], [memoryview(b"x")], [1000], deadline)
    return told


def test_a_folder_that_is_missing_is_unreachable(tmp_path: Path) -> None:
    """It is not made, since it may be a mount that is missing."""
    with pytest.raises(EngineUnreachable, match="cannot open"):
        folder_engine.FolderEngine(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_folder_that_was_lost_is_not_filled(tmp_path: Path, *, comes_back: bool) -> None:
    """A write would go to the disk below the lost mount."""
    folder = tmp_path / "mount"
    folder.mkdir()
    engine = folder_engine.FolderEngine(folder)
    assert put(engine, b"kv1/{a}/b") is None
    other = tmp_path / "other"
    other.mkdir()
    shutil.rmtree(folder)
    if comes_back:
        other.rename(folder)
    with pytest.raises(EngineUnreachable):
        put(engine, b"kv1/{a}/b")
    with pytest.raises(EngineUnreachable):
        engine.ping(monotonic() + GENEROUS)
    assert not any(folder.glob("*"))


def test_a_control_value_that_is_too_long_is_malformed(tmp_path: Path) -> None:
    """It is not read into memory."""
    engine = folder_engine.FolderEngine(tmp_path)
    (tmp_path / "kvr").mkdir()
    (tmp_path / "kvr" / "{a}").write_bytes(bytes(MOST_CONTROL_BYTES + 1))
    with pytest.raises(ReplyMalformed):
        engine.control(b"kvr/{a}", monotonic() + GENEROUS)


def test_a_name_that_is_no_path_is_refused(tmp_path: Path) -> None:
    """No name leads out of the folder."""
    engine = folder_engine.FolderEngine(tmp_path)
    for name in (b"../x", b"kv1/../../x"):
        with pytest.raises(ValueError, match=r"\.\."):
            put(engine, name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user whom permissions bind: not root")
def test_a_folder_without_rights_is_forbidden(tmp_path: Path) -> None:
    """The operator has to act."""
    engine = folder_engine.FolderEngine(tmp_path)
    tmp_path.chmod(0o500)
    with pytest.raises(CommandForbidden):
        put(engine, b"kv1/{a}/b")
    tmp_path.chmod(0o700)
