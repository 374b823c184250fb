"""The results of a script: files that are complete at any moment, however the script ends."""

import json
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Final

# A lender of machines may return only files of at most 16 MiB.
MOST_BYTES: Final = 16 << 20
# Limit for the log of one step, so that an endless step leaves room for the others.
MOST_STEP_BYTES: Final = 2 << 20
# Of the whole log; what a step says of what is left out fits besides.
MOST_LOG_BYTES: Final = MOST_BYTES - (64 << 10)
TRITON: Final = "triton-cache.tar.gz"


class Results:
    """``SCRIPT.jsonl`` and ``SCRIPT.log`` in a folder. Thread-safe."""

    def __init__(self, folder: Path, script: str) -> None:
        """Begins both files anew; makes ``folder`` if it is missing."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.records = folder / f"{script}.jsonl"
        self._log = folder / f"{script}.log"
        self.records.write_text("", encoding="utf-8")
        self._log.write_text("", encoding="utf-8")
        self._written: dict[str, int] = {}
        self._full: set[str] = set()
        self._mutex = Lock()

    def record(self, entry: Mapping[str, Any]) -> None:
        """Appends one line of JSON."""
        with self._mutex, self.records.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def log(self, step: str, line: str) -> None:
        """Appends a step's output, up to ``MOST_STEP_BYTES``, and ``MOST_LOG_BYTES`` in all."""
        text = f"[{step}] {line.rstrip()}\n".encode()
        with self._mutex:
            left = min(
                MOST_STEP_BYTES - self._written.get(step, 0),
                MOST_LOG_BYTES - sum(self._written.values()),
            )
            if step in self._full:
                return
            if len(text) > left:
                self._full.add(step)
                text = f"[{step}] (too much for the log: the rest is left out)\n".encode()
            else:
                self._written[step] = self._written.get(step, 0) + len(text)
            with self._log.open("ab") as file:
                file.write(text)


def entries(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the whole lines of a folder's ``.jsonl`` files, if any, the oldest file first."""
    paths = sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue


def save_triton(cache: Path, folder: Path) -> str:
    """Packs Triton's cache into the results and returns a line about it."""
    if not cache.is_dir() or not any(cache.iterdir()):
        return "Triton compiled nothing"
    packed = folder / f".{TRITON}.part"
    try:
        with tarfile.open(packed, "w:gz") as archive:
            archive.add(cache, arcname=".")
        size = packed.stat().st_size
        if size > MOST_BYTES:
            mib = f"{size >> 20} MiB packed, at most {MOST_BYTES >> 20}"
            return f"Triton's cache is left out: {mib}"
        packed.rename(folder / TRITON)
    except OSError as error:
        return f"Triton's cache is left out: {error}"
    finally:
        packed.unlink(missing_ok=True)
    return f"{TRITON}: {size / (1 << 20):.1f} MiB"


def load_triton(cache: Path, folder: Path) -> str:
    """Unpacks the cache that an earlier script saved and returns a line about it."""
    packed = folder / TRITON
    if not packed.exists():
        return "no Triton cache of an earlier run"
    cache.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(packed) as archive:
            archive.extractall(cache, filter="data")
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        # Triton would load a kernel that was cut off.
        shutil.rmtree(cache, ignore_errors=True)
        return f"{TRITON} of an earlier run cannot be unpacked: {error}"
    return f"{TRITON} of an earlier run is used"
