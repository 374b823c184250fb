"""A folder's digest follows its weights and configuration, also if it is remembered."""

import os
from pathlib import Path

import pytest

from kvstore_client.testing import wait_until
from kvstore_transformers import weights_digest
from kvstore_transformers.cache_folder import cache_folder
from kvstore_transformers.weights_digest import folder_digest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a folder with the files that a digest reads."""
    (tmp_path / "config.json").write_text('{"model_type": "none"}')
    (tmp_path / "model.safetensors").write_bytes(bytes(range(100)))
    return tmp_path


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_any_changed_byte_gives_another_digest(folder: Path, file: str) -> None:
    """Weights and configuration both count."""
    before = folder_digest(folder)
    content = bytearray((folder / file).read_bytes())
    content[3] ^= 1
    (folder / file).write_bytes(content)
    assert folder_digest(folder) != before


def test_the_place_and_other_files_do_not_count(folder: Path, tmp_path: Path) -> None:
    """A moved folder with an added tokenizer is the same model."""
    before = folder_digest(folder)
    (folder / "tokenizer.json").write_text("{}")
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    assert folder_digest(moved) == before


def test_a_large_folders_digest_is_remembered_until_it_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remembered digest is the computed one, and a rewritten file is read again."""
    real = folder_digest(folder)
    monkeypatch.setattr(weights_digest, "REMEMBER_FROM_BYTES", 1)
    assert folder_digest(folder) == real
    known = set((cache_folder() / "digests").iterdir())
    assert folder_digest(folder) == real
    assert set((cache_folder() / "digests").iterdir()) == known
    weights = folder / "model.safetensors"
    times = weights.stat()

    def changed_later() -> bool:
        weights.write_bytes(bytes(reversed(range(100))))
        # Even with its old time restored.
        os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
        return weights.stat().st_ctime_ns > times.st_ctime_ns

    # A file system's time advances in steps.
    assert wait_until(changed_later)
    assert folder_digest(folder) != real


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_folder_without_a_model_is_an_error(folder: Path, file: str) -> None:
    """A folder without weights or configuration has no digest."""
    (folder / file).unlink()
    with pytest.raises(FileNotFoundError):
        folder_digest(folder)
