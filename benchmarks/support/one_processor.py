"""Processes that take turns on one processor."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def one_processor(pids: Iterable[int]) -> Iterator[None]:
    """Keeps this process and others on one processor. Only one of them is measured at a time.

    A virtual machine's processors share the real ones with others. One of two was half as slow
    again as the other for minutes, so a process on it would lose as much.
    """
    before = {pid: os.sched_getaffinity(pid) for pid in (0, *pids)}
    chosen = {max(before[0])}
    try:
        for pid in before:
            os.sched_setaffinity(pid, chosen)
        yield
    finally:
        for pid, processors in before.items():
            os.sched_setaffinity(pid, processors)
