"""The write and read speed of a slab, beside plain copies of a file."""

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from threading import Semaphore
from typing import Any

from kvstore.storage.page_store import PageRead, PageWrite, ReadAnswer
from kvstore.storage.slab.slab import Slab, SlabConfig
from support.slab.pages import NAMESPACE, Writer, memory, page_of

THREADS = 4
PIECE = 4 << 20
SEGMENT_BYTES = 64 << 20
# Memory to write from, and as much to read to, for both.
REGION = 64 << 20
# Concurrent requests.
READS = 4
LIMIT = 120.0


class Ceiling:
    """A preallocated file, copied with O_DIRECT by as many threads as a slab has."""

    def __init__(self, path: Path, size: int, source: memoryview, into: memoryview) -> None:
        self._size = size
        self._source = source
        self._into = into
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        os.posix_fallocate(self._descriptor, 0, size)
        self._threads = ThreadPoolExecutor(THREADS)

    def write(self) -> None:
        """Writes the whole file, and syncs it once."""
        list(self._threads.map(self._write, range(THREADS)))
        os.fdatasync(self._descriptor)

    def read(self) -> None:
        """Reads the whole file."""
        list(self._threads.map(self._read, range(THREADS)))

    def read_places(self, count: int, stride: int) -> None:
        """Reads 4 KiB at each of ``count`` places, like headers beside their slots."""

        def part(thread: int) -> None:
            view = self._into[thread * PIECE :][:4096]
            for at in range(thread, count, THREADS):
                os.preadv(self._descriptor, [view], at * stride)

        list(self._threads.map(part, range(THREADS)))

    def close(self) -> None:
        """Closes the file."""
        self._threads.shutdown()
        os.close(self._descriptor)

    def _write(self, thread: int) -> None:
        for at in range(thread * PIECE, self._size, THREADS * PIECE):
            os.pwritev(self._descriptor, [piece(self._source, at)], at)

    def _read(self, thread: int) -> None:
        for at in range(thread * PIECE, self._size, THREADS * PIECE):
            os.preadv(self._descriptor, [piece(self._into, at)], at)


def piece(region: memoryview, at: int) -> memoryview:
    """Returns the piece of memory for a place in the file. All memory is used in turn."""
    start = at % (len(region) // PIECE * PIECE)
    return region[start : start + PIECE]


def write_all(slab: Slab, source: memoryview, pages: list[PageWrite], page_bytes: int) -> None:
    """Writes pages until all are acknowledged, from memory like an arena's."""
    writer = Writer(slab, (128 << 20) // page_bytes)
    slots = len(source) // page_bytes
    lost: list[int] = []
    for number, page in enumerate(pages):
        at = number % slots * page_bytes

        def done(committed: bool, number: int = number) -> None:  # noqa: FBT001
            if not committed:
                lost.append(number)

        writer.write(page, source[at : at + page_bytes], done)
    writer.drain()
    assert not lost


def read_all(slab: Slab, into: memoryview, pages: list[PageWrite], page_bytes: int) -> None:
    """Reads and checks every page, some requests at a time."""
    batch = max(len(into) // READS // page_bytes, 1)
    room = Semaphore(READS)
    found: list[int] = []
    idle = list(range(READS))

    def finish(target: int, answer: ReadAnswer) -> None:
        found.append(sum(answer.found))
        idle.append(target)
        room.release()

    for start in range(0, len(pages), batch):
        room.acquire()
        target = idle.pop()
        wanted = []
        for number, page in enumerate(pages[start : start + batch]):
            at = (target * batch + number) * page_bytes
            wanted.append(PageRead(page.key, [into[at : at + page_bytes]]))
        slab.read(wanted, partial(finish, target))
    for _ in range(READS):
        room.acquire()
    assert sum(found) == len(pages)


def empty(slab: Slab) -> None:
    """Removes every page."""
    done: Future[bool] = Future()
    slab.remove_namespace(NAMESPACE, done.set_result)
    assert done.result(LIMIT)


def worked(call: Callable[[], None]) -> tuple[float, float]:
    """Returns the seconds of a call, and this process's processor seconds for it."""
    processor = time.process_time()
    return timed(call), time.process_time() - processor


def timed(call: Callable[[], None]) -> float:
    """Returns the seconds of a call."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def measure_speed(folder: Path, page_bytes: int, size: int, rounds: int) -> dict[str, Any]:
    """Returns GB/s of a slab's writes and reads and of plain copies, in turns, and the ratios."""
    source, into = memory(REGION), memory(REGION)
    for start in range(0, len(source), 1 << 20):
        source[start : start + (1 << 20)] = os.urandom(1 << 20)
    count = size // page_bytes
    total = count * page_bytes
    pages = [page_of(number) for number in range(count)]
    path, plain = folder / "speed.slab", folder / "plain"
    config = SlabConfig(path, 2 * size + 4 * SEGMENT_BYTES, segment_bytes=SEGMENT_BYTES)
    ceiling = Ceiling(plain, total // PIECE * PIECE, source, into)
    samples: dict[str, list[float]] = {name: [] for name in ("write", "read")}
    ratios: dict[str, list[float]] = {name: [] for name in samples}
    work: dict[str, list[float]] = {name: [] for name in ratios}
    with Slab(config) as slab:
        for number in range(rounds + 1):
            calls: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
                "write": (partial(write_all, slab, source, pages, page_bytes), ceiling.write),
                "read": (partial(read_all, slab, into, pages, page_bytes), ceiling.read),
            }
            for name, (ours, theirs) in calls.items():
                if number % 2:
                    plainly = timed(theirs)
                    seconds, processor = worked(ours)
                else:
                    seconds, processor = worked(ours)
                    plainly = timed(theirs)
                # The first round writes blocks that the disk had only promised.
                if number:
                    samples[name].append(total / seconds / 1e9)
                    samples.setdefault(f"plain_{name}", []).append(total / plainly / 1e9)
                    ratios[name].append(plainly / seconds)
                    work[name].append(processor / count * 1e6)
            empty(slab)
    ceiling.close()
    plain.unlink()
    path.unlink()
    return {
        "page_bytes": page_bytes,
        "pages": count,
        **{f"{name}_gb_per_s": round(median(each), 3) for name, each in samples.items()},
        **{f"{name}_to_plain": round(median(each), 3) for name, each in ratios.items()},
        **{f"{name}_processor_us": round(median(each), 1) for name, each in work.items()},
        "raw": {name: [round(each, 3) for each in values] for name, values in samples.items()},
    }
