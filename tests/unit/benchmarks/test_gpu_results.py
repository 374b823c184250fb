"""The results of a GPU run: bounded, and complete at any moment."""

import os
import tarfile
from pathlib import Path

import pytest

from gpu_machine.results import (
    MOST_BYTES,
    MOST_STEP_BYTES,
    TRITON,
    Results,
    load_triton,
    save_triton,
)


def test_a_step_that_never_stops_talking_fills_no_disk(tmp_path: Path) -> None:
    """The log keeps the beginning of a long output, and says that the rest is missing."""
    results = Results(tmp_path, "try")
    for _ in range(3):
        results.log("loud", "x" * (MOST_STEP_BYTES // 2))
    results.log("other", "heard")
    log = (tmp_path / "try.log").read_text(encoding="utf-8")
    assert len(log) < MOST_STEP_BYTES + 200
    assert "the rest is left out" in log
    assert log.endswith("[other] heard\n")


def test_a_log_is_as_large_as_may_come_back(tmp_path: Path) -> None:
    """A log's limit is in bytes, as a character may take three, and for all steps together."""
    results = Results(tmp_path, "try")
    for step in range(3 * MOST_BYTES // MOST_STEP_BYTES):
        for _ in range(MOST_STEP_BYTES // (3 * 4096)):
            results.log(f"step {step}", "\u2501" * 4096)
    assert (tmp_path / "try.log").stat().st_size <= MOST_BYTES


def test_what_triton_compiled_travels(tmp_path: Path) -> None:
    """Kernels that Triton compiled on one machine are used on another one."""
    results, first, second = tmp_path / "results", tmp_path / "first", tmp_path / "second"
    results.mkdir()
    assert "compiled nothing" in save_triton(first, results)
    (first / "kernel").mkdir(parents=True)
    (first / "kernel" / "attend.cubin").write_bytes(b"code")
    assert "MiB" in save_triton(first, results)
    assert "is used" in load_triton(second, results)
    assert (second / "kernel" / "attend.cubin").read_bytes() == b"code"


def test_a_cache_that_came_back_broken_stops_no_script(tmp_path: Path) -> None:
    """A broken cache is reported, and the kernels are compiled anew."""
    cache = tmp_path / "cache"
    (cache / "kernel").mkdir(parents=True)
    (cache / "kernel" / "attend.cubin").write_bytes(os.urandom(1 << 16))
    save_triton(cache, tmp_path)
    packed = tmp_path / TRITON
    packed.write_bytes(packed.read_bytes()[: packed.stat().st_size // 2])
    other = tmp_path / "other"
    assert "cannot be unpacked" in load_triton(other, tmp_path)
    assert not other.exists()


def test_a_cache_appears_whole_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is not saved if a running compiler removes its temporary files meanwhile."""
    cache, results = tmp_path / "cache", tmp_path / "results"
    results.mkdir()
    (cache / "kernel").mkdir(parents=True)

    def vanished(*_: object, **__: object) -> None:
        assert not (results / TRITON).exists()
        raise FileNotFoundError("tmp.pid_1")

    monkeypatch.setattr(tarfile.TarFile, "add", vanished)
    assert "tmp.pid_1" in save_triton(cache, results)
    assert [*results.iterdir()] == []
