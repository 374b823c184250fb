"""The cgroups of this process. All functions read only files below ``root``."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple


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
