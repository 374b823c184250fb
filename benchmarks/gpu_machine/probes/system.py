"""Probe of what the store needs of the machine's kernel, with a GPU or without."""

import ctypes
import fcntl
import mmap
import os
import platform
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
SIZE: Final = mmap.PAGESIZE
# Of linux/prctl.h.
PR_SET_PDEATHSIG: Final = 1


def kernel() -> dict[str, Any]:
    """Uses what the store needs; ``why`` says what is refused.

    An emulated kernel such as gVisor's may lack some of it. Then the store serves nobody there.
    """
    uses = (
        sees_a_death,
        seals_memory,
        opens_memory_for_readers,
        sends_descriptors,
        ends_with_its_parent,
    )
    facts = {use.__name__: _outcome(use) for use in uses}
    refused = [f"{name}: {found}" for name, found in facts.items() if found != "yes"]
    answer = "no" if refused else "yes"
    why = "; ".join(refused) or platform.version()
    return {"answer": answer, "why": why, "release": platform.release(), **facts}


def sees_a_death() -> bool:
    """Returns whether a pidfd says that a process ended, and not before it did."""
    with _sleeper() as child:
        pidfd = os.pidfd_open(child.pid)
        try:
            waits = select.poll()
            waits.register(pidfd, select.POLLIN)
            lives = waits.poll(0) == []
            child.kill()
            return lives and waits.poll(10_000) != []
        finally:
            os.close(pidfd)


def seals_memory() -> bool:
    """Returns whether a memfd is allocated, sealed, and mapped so that no fork inherits it."""
    descriptor = os.memfd_create("probe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, SIZE)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        with mmap.mmap(descriptor, SIZE) as mapping:
            mapping.madvise(mmap.MADV_DONTFORK)
            mapping.madvise(mmap.MADV_DONTDUMP)
        try:
            os.ftruncate(descriptor, 0)
        except PermissionError:
            return True
        return False
    finally:
        os.close(descriptor)


def opens_memory_for_readers() -> bool:
    """Returns whether a memfd can be opened again by /proc, for reading only."""
    descriptor = os.memfd_create("probe", os.MFD_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, SIZE)
        readers = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(descriptor)
    try:
        mmap.mmap(readers, SIZE, prot=mmap.PROT_READ).close()
        mmap.mmap(readers, SIZE).close()
    except PermissionError:
        return True
    finally:
        os.close(readers)
    return False


def sends_descriptors() -> bool:
    """Returns whether a unix socket carries a descriptor, and says whose it is."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        sent = os.memfd_create("probe")
        os.write(sent, b"sent")
        socket.send_fds(ours, [b"1"], [sent])
        os.close(sent)
        _, (received,), _, _ = socket.recv_fds(theirs, 1, 1)
        content = os.pread(received, 4, 0)
        os.close(received)
        peer = theirs.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return content == b"sent" and peer[:4] == os.getpid().to_bytes(4, sys.byteorder)


def ends_with_its_parent() -> bool:
    """Returns whether a process may ask for a signal at its parent's death."""
    library = ctypes.CDLL(None)
    return bool(
        library.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) == 0
        and library.prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0) == 0
    )


def _outcome(use: Callable[[], bool]) -> str:
    try:
        return "yes" if use() else "no"
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


@contextmanager
def _sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:  # noqa: S603 - our own program
        try:
            yield child
        finally:
            child.kill()
