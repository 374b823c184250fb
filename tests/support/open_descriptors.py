"""Which files a process has open."""

import gc
from pathlib import Path


def open_descriptors() -> set[str]:
    """Return this process's descriptors, by number and target.

    Those that other tests left to the collector are closed first, and not in between.
    """
    gc.collect()
    return {f"{each.name} {each.resolve()}" for each in Path("/proc/self/fd").iterdir()}
