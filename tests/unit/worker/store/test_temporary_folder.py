"""A folder is removed with its process, and the next process removes what a killed one left."""

import fcntl
import tempfile
from pathlib import Path

import pytest

from inference_worker.store.folders import PREFIX, STORE, TemporaryFolder


def test_what_nobody_uses_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process's folder is removed; others, and those of the living, stay."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, drains, other = tmp_path / f"{PREFIX}1", tmp_path / f"{PREFIX}2", tmp_path / "other"
    for each in (left, drains, other):
        (each / STORE).mkdir(parents=True)
        (each / STORE / "kvstore.flock").touch()
    (tmp_path / f"{PREFIX}3").symlink_to(other)
    with (drains / STORE / "kvstore.flock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        first = TemporaryFolder()
        second = TemporaryFolder()
        assert not left.exists()
        assert (drains / STORE).exists()
        assert (other / STORE).exists()
        assert first.path.exists()
    second.remove()
    assert not second.path.exists()
    third = TemporaryFolder()
    assert not drains.exists()
    third.remove()
    first.remove()
    assert not list(tmp_path.glob(f"{PREFIX}[!3]*"))
