"""Checks of kvstore-ctl doctor that look at this machine: sockets, kernel, descriptors."""

import fcntl
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from kvstore_client.ctl_findings import Finding, failed, ok, skipped, warning
from kvstore_client.host_facts import HostFacts
from kvstore_client.runtime_dir import RuntimeDir

# asm-generic/socket.h; Python has no name for it yet. Linux 6.5.
SO_PEERPIDFD = 77
OPEN_TO_OTHERS = 0o007
# A worker takes its attach connection, four lanes and a pidfd of the server at most, and
# an extent takes two descriptors.
FEW_DESCRIPTORS = 1024
MOST_IN_USE = 0.8
# Read without a call into the kernel, or in tens of nanoseconds.
QUICK_CLOCKS = frozenset({"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"})
START = "start kvstore-server, or say where it is with --runtime-dir"


def socket_check(paths: RuntimeDir) -> Finding:
    """Look whether the store's folder and sockets are there, and this user may use them."""
    name, path = "socket", paths.path
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        for path in (paths.attach_socket, paths.grpc_socket):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                return failed(name, f"{path} is no socket", f"remove it, and {START}")
            if not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
                return failed(name, f"{path} is not yours to use", _whose(paths.path))
    except (FileNotFoundError, NotADirectoryError):
        return failed(name, f"there is no {path}", START)
    except PermissionError:
        return failed(name, f"{path} is not yours to see", _whose(paths.path))
    if mode & OPEN_TO_OTHERS:
        advice = f"chmod 700 {paths.path}: the server refuses to start in a folder open to all"
        return warning(name, f"{paths.path} has mode {mode:04o}", advice)
    return ok(name, f"{paths.path}, mode {mode:04o}, both sockets there")


def server_pid(facts: HostFacts, paths: RuntimeDir) -> int | None:
    """Return the process that serves a folder, by the flock that it holds on its file.

    None where it is not seen here: the number in the file is that of its own pid namespace,
    and may be somebody else's here.
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
    """Look how many descriptors this process and the server may have, and the server has."""
    name = "descriptors"
    own = facts.open_file_limit("self")
    limit = None if pid is None else facts.open_file_limit(pid)
    used = None if pid is None else facts.open_file_count(pid)
    raise_it = "raise LimitNOFILE (systemd), --ulimit nofile (containers) or ulimit -n"
    if limit is not None and used is not None and used > limit * MOST_IN_USE:
        found = f"the server has {used} of {limit} descriptors"
        return failed(name, found, f"{raise_it} of the server: without one nobody can attach")
    for whose, each in (("server", limit), ("process here", own)):
        if each is not None and each < FEW_DESCRIPTORS:
            return warning(name, f"the {whose} may have {each}", f"{raise_it} to 65536")
    seen = f", the server has {used} of {limit}" if used is not None else ""
    return ok(name, f"this process may have {own}{seen}")


def memfd_check(make: Callable[[str, int], int] = os.memfd_create) -> Finding:
    """Look whether sealed memory without a file can be had: extents are that, not /dev/shm."""
    name = "memfd"
    try:
        descriptor = make("kvstore-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, os.sysconf("SC_PAGESIZE"))
            os.posix_fallocate(descriptor, 0, os.sysconf("SC_PAGESIZE"))
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        finally:
            os.close(descriptor)
    except OSError as error:
        advice = "allow memfd_create and fcntl(F_ADD_SEALS) in the container's seccomp profile"
        return failed(name, f"no sealed memory: {error.strerror}", advice)
    return ok(name, "sealed memory can be had; /dev/shm is not used, whatever its size")


def kernel_check(option: int = SO_PEERPIDFD) -> Finding:
    """Look whether the kernel names the process at the other end of a socket."""
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
    """Look what the kernel's clocks are read from: leases and calls count on them."""
    name = "clock"
    source = facts.clock_source()
    if not source:
        return skipped(name, "the kernel does not say what its clocks are read from")
    if source not in QUICK_CLOCKS:
        found = f"clocks are read from {source}, a microsecond or more each time"
        return warning(name, found, "boot with clocksource=tsc where the machine's is stable")
    return ok(name, f"clocks are read from {source}")


def _whose(path: Path) -> str:
    try:
        owner = f"uid {path.stat().st_uid}"
    except OSError:
        owner = "its owner"
    return (
        f"run as {owner}, or be in the group of --socket-group;"
        " for another user's store use --address with a token"
    )
