"""Repeated kill -9 of a slab's writer, and the check of its pages afterwards."""

import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any

from kvstore.storage.page_store import PageKey, PageRead, ReadAnswer
from kvstore.storage.slab.slab import Slab, SlabConfig
from support.slab.pages import NAMESPACE, bytes_of, key_of, memory

PAGE_BYTES = 64 << 10
SEGMENT_BYTES = 32 << 20
SIZE_BYTES = 512 << 20
# A writer is killed after that many lines. Pages accumulate over that many kills.
TOLD = 1, 1500
KEPT = 4
BATCH = 64
LIMIT = 120.0
CHILD = Path(__file__).with_name("child.py")
# Numbers of each writer, a multiple of a sequence's pages.
SPACING = 1 << 20
# Pages that may be in flight after the last one that was reported.
AHEAD = 2048
# The counts over all checks.
NAMES = (
    *("acknowledged_pages", "acknowledged_and_served", "served_pages", "removed_pages"),
    *("wrong_pages", "returned_pages", "corrupt_pages", "torn_slots", "orphaned_pages"),
)


def settings(path: Path, size_bytes: int) -> SlabConfig:
    """Returns the settings of the slab, the same for the writers and for the check."""
    return SlabConfig(path, size_bytes, segment_bytes=SEGMENT_BYTES)


class Told:
    """The writers' reports before they were killed."""

    def __init__(self) -> None:
        self.acknowledged: set[int] = set()
        self.leaving: set[int] = set()
        self.removed: set[int] = set()
        self._writers: list[range] = []

    def take(self, first: int, lines: list[str]) -> None:
        """Adds the reports of the writer that began with page ``first``."""
        kinds = {"a": self.acknowledged, "r": self.leaving, "d": self.removed}
        last = first
        for line in lines:
            number = int(line[1:])
            kinds[line[0]].add(number)
            last = max(last, number)
        self._writers.append(range(first, last + AHEAD))

    def numbers(self) -> dict[PageKey, int]:
        """Returns every page that may exist, by its key."""
        return {key_of(each): each for writer in self._writers for each in writer}


def child_environment() -> dict[str, str]:
    """Returns an environment in which a child finds what this process finds."""
    folders = [str(CHILD.parents[1]), *sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}


def killed_writer(path: Path, first: int, told: int) -> list[str]:
    """Runs a writer until it has written ``told`` lines, kills it, and returns all its lines."""
    command = [sys.executable, str(CHILD), str(path), str(SIZE_BYTES), str(first), str(os.getpid())]
    with subprocess.Popen(  # noqa: S603 - a program of ours
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=child_environment(),
    ) as process:
        assert process.stdout is not None
        lines = [line for _, line in zip(range(told), process.stdout, strict=False)]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout
    # The last line is complete or missing, because it was one write to a pipe.
    return [line for line in lines if line.endswith("\n") and line[0] in "ard"]


def read(slab: Slab, keys: list[PageKey]) -> dict[PageKey, bytes]:
    """Returns the bytes of each page that is served."""
    into = [memory(PAGE_BYTES) for _ in range(BATCH)]
    found: dict[PageKey, bytes] = {}
    for start in range(0, len(keys), BATCH):
        part = keys[start : start + BATCH]
        done: Future[ReadAnswer] = Future()
        wanted = [PageRead(key, [each]) for key, each in zip(part, into, strict=False)]
        slab.read(wanted, done.set_result)
        for key, each, whole in zip(part, into, done.result(LIMIT).found, strict=False):
            if whole:
                found[key] = bytes(each)
    return found


def look(path: Path, told: Told, *, empty: bool) -> Counter[str]:
    """Opens the slab like a server after a crash, and counts the pages found and missing."""
    tally: Counter[str] = Counter()
    numbers = told.numbers()
    due = told.acknowledged - told.leaving
    with Slab(settings(path, SIZE_BYTES)) as slab:
        counters = slab.use().counters
        tally["torn_slots"] = counters.torn_slots
        tally["orphaned_pages"] = counters.orphaned_pages
        served = read(slab, slab.keys(NAMESPACE))
        tally["corrupt_pages"] = slab.use().counters.corrupt_pages
        tally["served_pages"] = len(served)
        for key, data in served.items():
            number = numbers.get(key)
            if number is None or data != bytes_of(number, PAGE_BYTES):
                tally["wrong_pages"] += 1
                continue
            tally["returned_pages"] += number in told.removed
            tally["acknowledged_and_served"] += number in due
        tally["acknowledged_pages"] = len(due)
        tally["removed_pages"] = len(told.removed)
        if empty:
            done: Future[bool] = Future()
            slab.remove_namespace(NAMESPACE, done.set_result)
            assert done.result(LIMIT)
    return tally


def run_kills(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kills writers of one slab, checks after each, and returns the sums."""
    path = folder / "killed.slab"
    rng = Random(seed)
    total: Counter[str] = Counter()
    told = Told()
    for kill in range(kills):
        first = kill * SPACING
        told.take(first, killed_writer(path, first, rng.randint(*TOLD)))
        empty = kill % KEPT == KEPT - 1
        total += look(path, told, empty=empty)
        if empty:
            told = Told()
    path.unlink(missing_ok=True)
    share = total["acknowledged_and_served"] / max(total["acknowledged_pages"], 1)
    return {
        "kills": kills,
        "seed": seed,
        "share_of_acknowledged": round(share, 6),
        **{name: total[name] for name in NAMES},
    }
