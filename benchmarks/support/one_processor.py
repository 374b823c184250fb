"""Processes that take turns, on one processor."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def one_processor(pids: Iterable[int]) -> Iterator[None]:
    """Keeps this process and others, of which one is measured at a time, on the same processor.

    A virtual machine's processors share theirs with strangers: one of two was seen half as
    slow again as the other for minutes, and whose process sat there lost by as much.
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
