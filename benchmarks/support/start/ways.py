"""The ways to fill host memory that are compared."""

import os
from typing import NamedTuple

from kvstore.storage.host import hugepages
from kvstore.storage.host.hugepages import Hugepages
from support.start.program import FALLOCATE


class Way(NamedTuple):
    """The kind of pages, and the number of threads; None is fallocate, as before."""

    name: str
    hugepages: Hugepages
    threads: int | None

    @property
    def fill(self) -> str:
        """Returns the way as the server's program reads it."""
        return FALLOCATE if self.threads is None else str(self.threads)


def ways(threads: list[int], size_bytes: int) -> tuple[list[Way], list[str]]:
    """Returns the ways that this machine allows, and the reasons against the others."""
    found = [Way("fallocate, as before", Hugepages.OFF, None)]
    found += [Way(f"4 KiB, {_threads(each)}", Hugepages.OFF, each) for each in threads]
    left_out: list[str] = []
    if hugepages.transparent_allowed():
        found += [
            Way(f"transparent, {_threads(each)}", Hugepages.TRANSPARENT, each) for each in threads
        ]
    else:
        left_out.append(f"transparent: /{hugepages.SHMEM_ENABLED} does not allow them: set advise")
    if hugepages.available_bytes() >= size_bytes:
        found += [Way(f"2 MiB, {_threads(each)}", Hugepages.RESERVED, each) for each in threads]
    else:
        needed = hugepages.needed_pages(size_bytes)
        left_out.append(f"2 MiB: set vm.nr_hugepages to at least {needed}")
    return found, left_out


def thread_counts(given: list[int]) -> list[int]:
    """Returns the numbers of threads: 1, 2, 4 and so on up to the processors, unless given."""
    most = len(os.sched_getaffinity(0))
    return given or [1 << bits for bits in range(most.bit_length()) if 1 << bits <= most]


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
