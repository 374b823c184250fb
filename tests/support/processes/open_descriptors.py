"""The files that a process has open."""

import gc
from collections.abc import Iterator
from pathlib import Path


def open_descriptors(target: str) -> set[str]:
    """Returns the numbers of this process's descriptors of files whose name has ``target`` in it.

    Not of all: threads of other tests open and close what they please. What other tests left to
    the collector is closed first, and not in between.
    """
    gc.collect()
    return set(_descriptors(target))


def _descriptors(target: str) -> Iterator[str]:
    for each in Path("/proc/self/fd").iterdir():
        try:
            name = str(each.readlink())
        except FileNotFoundError:  # closed since it was listed, as the listing's own is
            continue
        if target in name:
            yield each.name
