"""The time until an extent is ready, and the time of its first touch after that."""

import ctypes
import mmap
import time
from collections.abc import Callable
from contextlib import closing
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

from kvstore.storage.extent import ExtentShape, HostExport
from kvstore.storage.host.host_memory import HostMemory
from support.start.program import NEVER
from support.start.ways import Way

GIB = 1 << 30
SLOT_BYTES = 2 << 20


def measure_extents(ways: list[Way], size_bytes: int, rounds: int) -> dict[str, Any]:
    """Returns seconds a GiB of each way and of plain memsets, in turns, and the ratios.

    ``ready`` is the time from the request for an extent until it is allocated. ``touch`` is one
    write of all of it by this process, as registration with CUDA touches it. ``worker`` is one
    write through another mapping, as a worker's first writes do. ``memset`` writes fresh memory of
    the process, ``memset_again`` memory that it has touched.
    """
    samples: dict[str, dict[str, list[float]]] = {way.name: {} for way in ways}
    plain: dict[str, list[float]] = {"memset": [], "memset_again": []}
    ratios: dict[str, list[float]] = {way.name: [] for way in ways}
    for number in range(rounds + 1):
        fresh, again = _plain(size_bytes)
        for way in ways[:: -1 if number % 2 else 1]:
            figures = _extent(way, size_bytes)
            # The first round uses memory that the machine had not used for a while.
            if number:
                for name, seconds in figures.items():
                    samples[way.name].setdefault(name, []).append(seconds / size_bytes * GIB)
                ratios[way.name].append((figures["ready"] + figures["touch"]) / again)
        if number:
            plain["memset"].append(fresh / size_bytes * GIB)
            plain["memset_again"].append(again / size_bytes * GIB)
    return {
        "plain": {name: _summary(values) for name, values in plain.items()},
        "ways": {
            way.name: {
                **{name: _summary(values) for name, values in samples[way.name].items()},
                "ready_and_touch_to_memset_again": round(median(ratios[way.name]), 3),
            }
            for way in ways
        },
    }


def _plain(size_bytes: int) -> tuple[float, float]:
    """Returns the seconds of writing memory of this process, the first time and again."""
    array = np.empty(size_bytes, np.uint8)
    return _timed(lambda: array.fill(1)), _timed(lambda: array.fill(2))


def _extent(way: Way, size_bytes: int) -> dict[str, float]:
    shape = ExtentShape(1, 1, 1, size_bytes // SLOT_BYTES, SLOT_BYTES)
    source = HostMemory(hugepages=way.hugepages, threads=way.threads or 1)
    enough = NEVER if way.threads is None else 1
    with patch("kvstore.storage.host.memfd.ENOUGH_THREADS", enough):
        began = time.perf_counter()
        extent = source.allocate(shape)
        ready = time.perf_counter() - began
    with closing(extent):
        export = extent.describe().export
        assert isinstance(export, HostExport)
        first = extent.place(0)
        assert first is not None
        touch = _timed(_write(first, size_bytes))
        del first
        worker = mmap.mmap(export.descriptor, export.size_bytes)
        if way.hugepages is way.hugepages.TRANSPARENT:
            worker.madvise(mmap.MADV_HUGEPAGE)
        with closing(worker):
            return {
                "ready": ready,
                "touch": touch,
                "worker": _timed(_write(worker, size_bytes)),
            }


def _write(mapping: mmap.mmap | memoryview, size_bytes: int) -> Callable[[], None]:
    address = ctypes.addressof(ctypes.c_ubyte.from_buffer(mapping))

    def write() -> None:
        ctypes.memset(address, 3, size_bytes)

    return write


def _timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _summary(values: list[float]) -> dict[str, Any]:
    """Returns the median, the least, and all values, in seconds a GiB."""
    return {
        "median": round(median(values), 4),
        "least": round(min(values), 4),
        "raw": [round(each, 4) for each in values],
    }
