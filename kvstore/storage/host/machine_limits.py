"""Limits of memory and processors for this process.

The kernel grants an allocation beyond the available memory, and kills this or another process long
after. So the bounds are read before each allocation. All functions read only files below ``root``.
"""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from kvstore.storage.errors import NotEnoughMemory


class Cgroup(NamedTuple):
    """A cgroup's folder, and the version of its hierarchy: 1 or 2."""

    version: int
    path: Path


class Mount(NamedTuple):
    """A mounted cgroup hierarchy: the cgroup at its root, and its path. ``version`` is 1 or 2."""

    version: int
    cgroup: PurePosixPath
    path: PurePosixPath


def cgroups(controller: str, root: Path = Path("/")) -> Iterator[Cgroup]:
    """Yields this process's cgroup and those above it, for each mount that has ``controller``.

    A mount of version 2 is always yielded, whichever controllers it has.
    """
    for mount in _mounts(controller, root):
        top = root / mount.path.relative_to("/")
        own = _own_cgroup(controller, root, mount)
        for path in (top / own, *(top / parent for parent in own.parents)):
            yield Cgroup(mount.version, path)


def read(path: Path) -> str:
    """Returns a file's text, or "" if the file is absent or unreadable."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _own_cgroup(controller: str, root: Path, mount: Mount) -> PurePosixPath:
    """Returns this process's cgroup below a mount, or the mount's own if that is not visible."""
    for line in read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        version = 1 if controller in controllers.split(",") else 2 if not controllers else 0
        if version == mount.version and PurePosixPath(path).is_relative_to(mount.cgroup):
            return PurePosixPath(path).relative_to(mount.cgroup)
    return PurePosixPath()


def _mounts(controller: str, root: Path) -> Iterator[Mount]:
    """Yields the mounts of cgroup v2, and those of the v1 hierarchy of ``controller``.

    A line of mountinfo has ids, device, the mount's root, its path and options. After a lone dash
    it has the file system's type, source and options.
    """
    for line in read(root / "proc/self/mountinfo").splitlines():
        place, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.partition(" ")
        version = {"cgroup2": 2, "cgroup": 1}.get(kind)
        if version is None or (version == 1 and controller not in options.split()[-1].split(",")):
            continue
        cgroup, path = place.split(" ")[3:5]
        yield Mount(version, PurePosixPath(cgroup), PurePosixPath(path))


def processor_count(root: Path = Path("/")) -> int:
    """Returns the processors of the affinity mask, or fewer if a cgroup's quota allows fewer.

    A quota of 2.5 processors counts as 2: the kernel would throttle a third thread. The result is
    at least 1. Quotas are read below ``root``.
    """
    quotas = (quota for each in cgroups("cpu", root) for quota in _quota(each))
    return max(1, int(min([len(os.sched_getaffinity(0)), *quotas])))


def _quota(cgroup: Cgroup) -> Iterator[float]:
    """Yields how many processors a cgroup may use, if it has a limit."""
    if cgroup.version == 1:
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = [read(cgroup.path / name).strip() for name in names]
    else:
        words = read(cgroup.path / "cpu.max").split()
    # Without a limit the quota is "max", or -1 in version 1.
    if all(each.isdigit() for each in words):
        match [int(each) for each in words]:
            case [quota, period] if period:
                yield quota / period


# cgroup v1 says "no limit" as the largest multiple of a page; no machine has this much.
UNLIMITED = 1 << 60
KIB = 1024


class Bound(NamedTuple):
    """The bytes that are available according to ``source``."""

    available_bytes: int
    source: str


class Files(NamedTuple):
    """The files of one cgroup version, and the reclaimable page cache in its statistics."""

    limit: str
    usage: str
    reclaimable: str


FILES = {
    1: Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: Files("memory.max", "memory.current", "inactive_file"),
}


def require(size_bytes: int, root: Path = Path("/")) -> None:
    """Raises :class:`NotEnoughMemory`, naming the bound, unless ``size_bytes`` fit all bounds."""
    for bound in bounds(root):
        if size_bytes > bound.available_bytes:
            raise NotEnoughMemory(
                f"not enough memory by {bound.source}",
                requested_bytes=size_bytes,
                available_bytes=bound.available_bytes,
            )


def bounds(root: Path = Path("/")) -> list[Bound]:
    """Returns every bound: the machine's, and those of all cgroups of this process."""
    return [*machine_bounds(root), *_cgroups(root)]


def machine_bounds(root: Path = Path("/")) -> Iterator[Bound]:
    """Yields MemAvailable, the kernel's estimate of the memory available without swapping."""
    for line in read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield Bound(int(line.split()[1]) * KIB, "MemAvailable")


def _cgroups(root: Path) -> Iterator[Bound]:
    """Yields the bound of each limited cgroup from ours to the top of its mount."""
    for version, directory in cgroups("memory", root):
        yield from _cgroup(directory, FILES[version], root)


def _cgroup(directory: Path, files: Files, root: Path) -> Iterator[Bound]:
    """Yields the bound of one cgroup, if it has a limit.

    Page cache that was not used for a while counts as available, as in the working set of
    container runtimes. The kernel drops it first.
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
