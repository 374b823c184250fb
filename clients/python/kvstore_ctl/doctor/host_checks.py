"""Checks of kvstore-ctl doctor on this machine and its processes, by the kernel's files."""

import fcntl
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from kvstore_client.runtime_dir import RuntimeDir
from kvstore_ctl.doctor.findings import Finding, failed, ok, skipped, warning

KIB = 1024
# cgroup v1 writes "no limit" as the largest multiple of a page. No machine has this much memory.
UNLIMITED = 1 << 60
# By cgroup version: the files of limit and usage, and the field of the reclaimable cache.
MEMORY_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
CLOCK_SOURCE = "sys/devices/system/clocksource/clocksource0/current_clocksource"


class MemoryLimit(NamedTuple):
    """A memory limit of a cgroup, in bytes. ``used_bytes`` is without reclaimable cache.

    ``killed_count`` counts the processes that the kernel killed in it for lack of memory, if the
    cgroup counts them.
    """

    path: str
    limit_bytes: int
    used_bytes: int
    killed_count: int


class HostFacts:
    """Facts of a machine whose root folder is ``root``. Unreadable files count as absent."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def memory_bytes(self) -> tuple[int, int]:
        """Returns the bytes of the machine's memory, and those available without swapping."""
        found = {"MemTotal": 0, "MemAvailable": 0}
        for line in self._read("proc/meminfo").splitlines():
            name, _, rest = line.partition(":")
            if name in found:
                found[name] = int(rest.split()[0]) * KIB
        return found["MemTotal"], found["MemAvailable"]

    def memory_limits(self, pid: int | str) -> list[MemoryLimit]:
        """Returns the limits of a process's cgroups, its own cgroup's first."""
        return list(self._limits(pid))

    def open_file_limit(self, pid: int | str) -> int | None:
        """Returns how many descriptors a process may have; None if it is unknown."""
        for line in self._read(f"proc/{pid}/limits").splitlines():
            if line.startswith("Max open files"):
                soft = line.split()[3]
                return int(soft) if soft.isdigit() else UNLIMITED
        return None

    def open_file_count(self, pid: int | str) -> int | None:
        """Returns how many descriptors a process has; None if this user may not see it."""
        try:
            return sum(1 for _ in (self._root / f"proc/{pid}/fd").iterdir())
        except OSError:
            return None

    def namespace(self, kind: str, pid: int | str = "self") -> str | None:
        """Returns the namespace of a kind, such as ``ipc``, of a process; None if unknown."""
        try:
            return str((self._root / f"proc/{pid}/ns/{kind}").readlink())
        except OSError:
            return None

    def clock_source(self) -> str:
        """Returns the kernel's clock source, empty if it is unknown."""
        return self._read(CLOCK_SOURCE).strip()

    def flock_holders(self, path: Path) -> list[int] | None:
        """Returns the process ids that hold a file's flock, in this pid namespace.

        Returns None if it is unknown, or if the file does not exist.
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
        """Returns the names of the visible device files of NVIDIA GPUs."""
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
        """Yields the version, the cgroup and the path of each cgroup mount that limits memory."""
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
        """Returns a process's cgroup below a mount; the mount's own if it is not visible."""
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
    """Returns the number beside a name, from lines with both; 0 if the name is absent."""
    for line in text.splitlines():
        found, _, value = line.partition(" ")
        if found == name and value.strip().isdigit():
            return int(value)
    return 0


# asm-generic/socket.h; Python has no name for it yet. Linux 6.5.
SO_PEERPIDFD = 77
OPEN_TO_OTHERS = 0o007
# A worker takes its attach connection, four lanes and a pidfd of the server at most, and
# an extent takes two descriptors.
FEW_DESCRIPTORS = 1024
MOST_IN_USE = 0.8
# Clock sources that are read without a system call, or within tens of nanoseconds.
QUICK_CLOCKS = frozenset({"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"})
START = "start kvstore-server, or name its folder with --runtime-dir"
START_AGAIN = "read the end of the server's log, then start kvstore-server again"


def socket_check(paths: RuntimeDir) -> Finding:
    """Checks whether this user may use both sockets, and a server listens at the attach socket."""
    unusable = _unusable_sockets("socket", paths)
    if unusable is not None:
        return unusable
    if not paths.is_served():
        found = f"no server listens at {paths.attach_socket}: the one that made it has ended"
        return failed("socket", found, START_AGAIN)
    mode = stat.S_IMODE(paths.path.stat().st_mode)
    if mode & OPEN_TO_OTHERS:
        advice = f"chmod 700 {paths.path}: the server refuses to start in a folder open to all"
        return warning("socket", f"{paths.path} has mode {mode:04o}", advice)
    return ok("socket", f"{paths.path}, mode {mode:04o}, has both sockets")


def _unusable_sockets(name: str, paths: RuntimeDir) -> Finding | None:
    """Returns the finding if a socket is missing or this user may not use it, else None."""
    path = paths.path
    try:
        path.stat()
        for path in (paths.attach_socket, paths.grpc_socket):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                return failed(name, f"{path} is no socket", f"remove it, and {START}")
            if not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
                return failed(name, f"this user may not use {path}", _whose(paths.path))
    except (FileNotFoundError, NotADirectoryError):
        return failed(name, f"{path} does not exist", START)
    except PermissionError:
        return failed(name, f"this user may not see {path}", _whose(paths.path))
    return None


def server_pid(facts: HostFacts, paths: RuntimeDir) -> int | None:
    """Returns the id of the process that serves a folder, by its flock on the folder's file.

    Returns None if the process is not visible here. The id in the file is of the server's pid
    namespace, and may be another process's id here.
    """
    holders = facts.flock_holders(paths.flock_file)
    try:
        written = int(paths.flock_file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    if holders is None or written in holders:
        return written
    return holders[0] if holders else None


def descriptors_check(facts: HostFacts, pid: int | None) -> Finding:
    """Checks the descriptor limits of this process and the server, and the server's usage."""
    name = "descriptors"
    own = facts.open_file_limit("self")
    limit = None if pid is None else facts.open_file_limit(pid)
    used = None if pid is None else facts.open_file_count(pid)
    raise_it = "raise LimitNOFILE (systemd), --ulimit nofile (containers) or ulimit -n"
    if limit is not None and used is not None and used > limit * MOST_IN_USE:
        found = f"the server has {used} of {limit} descriptors"
        return failed(name, found, f"{raise_it} of the server: each attach needs a descriptor")
    for whose, each in (("server", limit), ("process here", own)):
        if each is not None and each < FEW_DESCRIPTORS:
            return warning(name, f"the {whose} may have {each}", f"{raise_it} to 65536")
    seen = f", the server has {used} of {limit}" if used is not None else ""
    return ok(name, f"this process may have {own}{seen}")


def memfd_check(make: Callable[[str, int], int] = os.memfd_create) -> Finding:
    """Checks whether the kernel provides sealed memfds, which extents use, not /dev/shm."""
    name = "memfd"
    try:
        descriptor = make("kvstore-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, os.sysconf("SC_PAGESIZE"))
            os.posix_fallocate(descriptor, 0, os.sysconf("SC_PAGESIZE"))
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
            # As the server opens tables of generations for workers, which may only read them.
            os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC))
        finally:
            os.close(descriptor)
    except OSError as error:
        advice = "allow memfd_create and fcntl(F_ADD_SEALS) in the container's seccomp profile"
        return failed(name, f"no sealed memory: {error.strerror}", advice)
    return ok(name, "sealed memory is available; the size of /dev/shm does not matter")


def kernel_check(option: int = SO_PEERPIDFD) -> Finding:
    """Checks whether the kernel identifies the process at the other end of a socket."""
    name = "pidfd"
    release = os.uname().release
    one, other = socket.socketpair()
    with one, other:
        try:
            os.close(one.getsockopt(socket.SOL_SOCKET, option))
        except OSError:
            by_peer = False
        else:
            by_peer = True
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        advice = "use Linux 5.3 or newer, and a seccomp profile that allows pidfd_open"
        return failed(name, f"Linux {release}: no pidfd ({error.strerror})", advice)
    if not by_peer:
        advice = (
            "use Linux 6.5 or newer, or have all in one pid namespace (pod: shareProcessNamespace)"
        )
        return warning(name, f"Linux {release} has no SO_PEERPIDFD", advice)
    return ok(name, f"Linux {release} has SO_PEERPIDFD: workers of other containers can be watched")


def clock_check(facts: HostFacts) -> Finding:
    """Checks the kernel's clock source, because leases and calls read clocks often."""
    name = "clock"
    source = facts.clock_source()
    if not source:
        return skipped(name, "the kernel does not tell its clock source")
    if source not in QUICK_CLOCKS:
        found = f"the clock source is {source}, which takes a microsecond or more a read"
        return warning(name, found, "boot with clocksource=tsc if the machine's is stable")
    return ok(name, f"the clock source is {source}")


def _whose(path: Path) -> str:
    try:
        owner = f"uid {path.stat().st_uid}"
    except OSError:
        owner = "its owner"
    return (
        f"run as {owner}, or be in the group of --socket-group;"
        " for another user's store use --address with a token"
    )
