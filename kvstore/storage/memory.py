"""How much memory there is for this process, before it is asked for.

An allocation beyond what there is would end in the kernel killing somebody, this
process or another, long after it was granted; so the bounds are read first. All
functions read files below ``root`` alone.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kvstore.storage.cgroups import cgroups, read
from kvstore.storage.errors import NotEnoughMemory

# cgroup v1 says "no limit" as the largest multiple of a page; no machine has this much.
UNLIMITED = 1 << 60
KIB = 1024


class Bound(NamedTuple):
    """How many bytes are available, by what ``source`` says."""

    available_bytes: int
    source: str


class Files(NamedTuple):
    """The files of one cgroup version, and the page cache of its statistics that can go."""

    limit: str
    usage: str
    reclaimable: str


FILES = {
    1: Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: Files("memory.max", "memory.current", "inactive_file"),
}


def require(size_bytes: int, root: Path = Path("/")) -> None:
    """Raise :class:`NotEnoughMemory`, naming the bound, unless ``size_bytes`` fit all bounds."""
    for bound in bounds(root):
        if size_bytes > bound.available_bytes:
            raise NotEnoughMemory(
                f"not enough memory by {bound.source}",
                requested_bytes=size_bytes,
                available_bytes=bound.available_bytes,
            )


def bounds(root: Path = Path("/")) -> list[Bound]:
    """Return every bound there is: the machine's, and those of all cgroups above us."""
    return [*_machine(root), *_cgroups(root)]


def _machine(root: Path) -> Iterator[Bound]:
    """Yield MemAvailable: what can be had without swapping, by the kernel's own estimate."""
    for line in read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield Bound(int(line.split()[1]) * KIB, "MemAvailable")


def _cgroups(root: Path) -> Iterator[Bound]:
    """Yield the bound of each limited cgroup from ours to the top of its mount."""
    for version, directory in cgroups("memory", root):
        yield from _cgroup(directory, FILES[version], root)


def _cgroup(directory: Path, files: Files, root: Path) -> Iterator[Bound]:
    """Yield the bound of one cgroup, if it has a limit.

    Page cache that was not used for a while counts as available, as in the
    working set of container runtimes: the kernel drops it before anything else.
    """
    limit = read(directory / files.limit).strip()
    usage = read(directory / files.usage).strip()
    if not limit.isdigit() or not usage.isdigit() or int(limit) >= UNLIMITED:
        return
    reclaimable = 0
    for line in read(directory / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == files.reclaimable:
            reclaimable = int(value)
    available = max(int(limit) - int(usage) + reclaimable, 0)
    yield Bound(available, f"/{(directory / files.limit).relative_to(root)}")
