"""A cached folder is built once, and appears only when it is complete."""

import threading
from pathlib import Path

import pytest

from inference_worker.model.cache import build_once
from kvstore_transformers.cache_folder import cache_folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives each test a cache of its own."""
    monkeypatch.setenv("KVSTORE_CACHE", str(tmp_path / "cache"))


def test_the_cache_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The cache's own variable is used first, then the user's cache folder, then the home."""
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("KVSTORE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/caches")
    assert cache_folder() == Path("/some/caches/kvstore")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/kvstore")


def test_only_one_of_many_builds() -> None:
    """Concurrent builders wait for the first one, and find its complete folder."""
    built: list[Path] = []
    together = threading.Barrier(8)
    found: list[str] = []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "file").write_text("whole")

    def use() -> None:
        together.wait(30)
        found.append((build_once("thing", build) / "file").read_text())

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == ["whole"] * 8
    assert len(built) == 1


def test_a_failed_build_leaves_nothing() -> None:
    """The error is raised, and the next build starts from an empty folder."""

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        build_once("thing", fail)
    assert not (cache_folder() / "thing").exists()
    assert list(build_once("thing", lambda _: None).iterdir()) == []


def test_what_a_killed_builder_left_is_cleared() -> None:
    """Files of a killed builder are not part of the new folder."""
    left = cache_folder() / ".thing.unfinished"
    left.mkdir(parents=True)
    (left / "half").touch()
    assert list(build_once("thing", lambda _: None).iterdir()) == []
