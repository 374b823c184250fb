"""How much memory there is for this process, before it is asked for.

An allocation beyond what there is would end in the kernel killing somebody, this
process or another, long after it was granted; so the bounds are read first. All
functions read files below ``root`` alone.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from kvstore.storage.errors import NotEnoughMemory

# cgroup v1 says "no limit" as the largest multiple of a page; no machine has this much.
UNLIMITED = 1 << 60
KIB = 1024


class Bound(NamedTuple):
    """How many bytes are available, by what ``source`` says."""

    available_bytes: int
    source: str


class Mount(NamedTuple):
    """A cgroup hierarchy: which cgroup is seen at which path. ``version`` is 1 or 2."""

    version: int
    cgroup: PurePosixPath
    path: PurePosixPath


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
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield Bound(int(line.split()[1]) * KIB, "MemAvailable")


def _cgroups(root: Path) -> Iterator[Bound]:
    """Yield the bound of each limited cgroup from ours to the top of its mount."""
    for mount in _mounts(root):
        top = root / mount.path.relative_to("/")
        own = _own_cgroup(root, mount)
        for directory in (top / own, *(top / parent for parent in own.parents)):
            yield from _cgroup(directory, FILES[mount.version], root)


def _own_cgroup(root: Path, mount: Mount) -> PurePosixPath:
    """Return this process's cgroup below a mount; the mount's own where it is not visible."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        version = 1 if "memory" in controllers.split(",") else 2 if not controllers else 0
        if version == mount.version and PurePosixPath(path).is_relative_to(mount.cgroup):
            return PurePosixPath(path).relative_to(mount.cgroup)
    return PurePosixPath()


def _cgroup(directory: Path, files: Files, root: Path) -> Iterator[Bound]:
    """Yield the bound of one cgroup, if it has a limit.

    Page cache that was not used for a while counts as available, as in the
    working set of container runtimes: the kernel drops it before anything else.
    """
    limit = _read(directory / files.limit).strip()
    usage = _read(directory / files.usage).strip()
    if not limit.isdigit() or not usage.isdigit() or int(limit) >= UNLIMITED:
        return
    reclaimable = 0
    for line in _read(directory / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == files.reclaimable:
            reclaimable = int(value)
    available = max(int(limit) - int(usage) + reclaimable, 0)
    yield Bound(available, f"/{(directory / files.limit).relative_to(root)}")


def _mounts(root: Path) -> Iterator[Mount]:
    """Yield where cgroup v2 and the memory controller of v1 are mounted.

    A line of mountinfo is: ids, device, the mount's root, its path, options,
    then after a lone dash the file system's type, source and options.
    """
    for line in _read(root / "proc/self/mountinfo").splitlines():
        place, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.partition(" ")
        version = {"cgroup2": 2, "cgroup": 1}.get(kind)
        if version is None or (version == 1 and "memory" not in options.split()[-1].split(",")):
            continue
        cgroup, path = place.split(" ")[3:5]
        yield Mount(version, PurePosixPath(cgroup), PurePosixPath(path))


def _read(path: Path) -> str:
    """Return a file's text; a file that is not there, or not ours to read, says nothing."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
