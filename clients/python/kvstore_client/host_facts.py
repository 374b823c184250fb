"""What the kernel says of this machine and of its processes, read from its files."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

KIB = 1024
# cgroup v1 says "no limit" as the largest multiple of a page; no machine has this much.
UNLIMITED = 1 << 60
# Of each cgroup version: its limit, its usage, and what of that can go at once.
MEMORY_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
CLOCK_SOURCE = "sys/devices/system/clocksource/clocksource0/current_clocksource"


class MemoryLimit(NamedTuple):
    """A limit of a cgroup, in bytes; ``used_bytes`` is without cache that can go at once.

    ``killed_count`` processes were killed for want of memory in it, as far as it counts.
    """

    path: str
    limit_bytes: int
    used_bytes: int
    killed_count: int


class HostFacts:
    """Facts of a machine whose root folder is ``root``. What cannot be read is not there."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def memory_bytes(self) -> tuple[int, int]:
        """Return the machine's memory, and what of it can be had without swapping."""
        found = {"MemTotal": 0, "MemAvailable": 0}
        for line in self._read("proc/meminfo").splitlines():
            name, _, rest = line.partition(":")
            if name in found:
                found[name] = int(rest.split()[0]) * KIB
        return found["MemTotal"], found["MemAvailable"]

    def memory_limits(self, pid: int | str) -> list[MemoryLimit]:
        """Return each limit that a process's cgroups have, its own first."""
        return list(self._limits(pid))

    def open_file_limit(self, pid: int | str) -> int | None:
        """Return how many descriptors a process may have; None where nobody says."""
        for line in self._read(f"proc/{pid}/limits").splitlines():
            if line.startswith("Max open files"):
                soft = line.split()[3]
                return int(soft) if soft.isdigit() else UNLIMITED
        return None

    def open_file_count(self, pid: int | str) -> int | None:
        """Return how many descriptors a process has; None where that is not ours to see."""
        try:
            return sum(1 for _ in (self._root / f"proc/{pid}/fd").iterdir())
        except OSError:
            return None

    def namespace(self, kind: str, pid: int | str = "self") -> str | None:
        """Return which namespace, such as ``ipc``, a process is in."""
        try:
            return str((self._root / f"proc/{pid}/ns/{kind}").readlink())
        except OSError:
            return None

    def clock_source(self) -> str:
        """Return what the kernel reads its clocks from; nothing where it does not say."""
        return self._read(CLOCK_SOURCE).strip()

    def flock_holders(self, path: Path) -> list[int] | None:
        """Return the processes that hold a file's flock, by their numbers here.

        None where the kernel does not say, or there is no such file.
        """
        listed = self._read("proc/locks")
        try:
            inode = str(path.stat().st_ino)
        except OSError:
            return None
        words = [line.split() for line in listed.splitlines()]
        held = [
            int(each[4])
            for each in words
            if each[1] == "FLOCK" and each[5].rpartition(":")[2] == inode
        ]
        return held if words else None

    def devices(self) -> list[str]:
        """Return the files of the GPUs of NVIDIA that are visible here."""
        found = (self._root / "dev").glob("nvidia[0-9]*")
        return sorted(each.name for each in found)

    def _limits(self, pid: int | str) -> Iterator[MemoryLimit]:
        for version, cgroup, path in self._memory_mounts():
            top = self._root / path.lstrip("/")
            own = self._own_cgroup(pid, version, cgroup)
            for folder in (top / own, *(top / each for each in own.parents)):
                yield from self._limit(folder, version)

    def _limit(self, folder: Path, version: int) -> Iterator[MemoryLimit]:
        limit_file, usage_file, reclaimable = MEMORY_FILES[version]
        limit = self._text(folder / limit_file).strip()
        usage = self._text(folder / usage_file).strip()
        if not limit.isdigit() or not usage.isdigit() or int(limit) >= UNLIMITED:
            return
        can_go = _number(self._text(folder / "memory.stat"), reclaimable)
        killed = _number(self._text(folder / "memory.events.local"), "oom_kill")
        place = f"/{(folder / limit_file).relative_to(self._root)}"
        yield MemoryLimit(place, int(limit), max(int(usage) - can_go, 0), killed)

    def _memory_mounts(self) -> Iterator[tuple[int, str, str]]:
        """Yield the version, the cgroup and the path of each mount that limits memory."""
        for line in self._read("proc/self/mountinfo").splitlines():
            place, _, filesystem = line.partition(" - ")
            kind, _, options = filesystem.partition(" ")
            version = {"cgroup2": 2, "cgroup": 1}.get(kind)
            if version == 1 and "memory" not in options.split()[-1].split(","):
                version = None
            if version is not None:
                cgroup, path = place.split(" ")[3:5]
                yield version, cgroup, path

    def _own_cgroup(self, pid: int | str, version: int, mounted: str) -> PurePosixPath:
        """Return a process's cgroup below a mount; the mount's own where it is not visible."""
        for line in self._read(f"proc/{pid}/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            found = 1 if "memory" in controllers.split(",") else 2 if not controllers else 0
            if found == version and PurePosixPath(path).is_relative_to(mounted):
                return PurePosixPath(path).relative_to(mounted)
        return PurePosixPath()

    def _read(self, name: str) -> str:
        return self._text(self._root / name)

    @staticmethod
    def _text(path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8")
        except OSError:
            return ""


def _number(text: str, name: str) -> int:
    """Return the number beside a name, of lines of both; 0 where it is not there."""
    for line in text.splitlines():
        found, _, value = line.partition(" ")
        if found == name and value.strip().isdigit():
            return int(value)
    return 0
