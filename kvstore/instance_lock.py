"""The file lock of a runtime folder, which one server at a time holds."""

import fcntl
import os
from typing import Self

from kvstore.runtime_dir import RuntimeDir

MODE = 0o600
MAX_PID_BYTES = 32


class InstanceRunning(Exception):
    """Another server holds the folder. ``pid`` is its number in its own pid namespace, if known."""

    def __init__(self, message: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class InstanceLock:
    """The flock of a runtime folder, as a context manager.

    The kernel releases it when the process ends, in whatever way, so no one has to remove
    anything. The file stays: removing it would let two servers lock two files of one name. Take
    the lock before you touch the folder, because gRPC silently takes a living server's socket.
    After :class:`InstanceRunning` it can be tried again.
    """

    def __init__(self, runtime_dir: RuntimeDir) -> None:
        self._runtime_dir = runtime_dir
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        """Takes the lock, and removes the sockets that a dead server left.

        Raises :class:`InstanceRunning` with the other server's pid, or ``UnusableRuntimeDir``.
        """
        self._runtime_dir.prepare()
        path = self._runtime_dir.flock_file
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, MAX_PID_BYTES, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise InstanceRunning(
                f"another kvstore-server (pid {holder or 'unknown'}) serves"
                f" {self._runtime_dir.path}: stop it, or choose another --runtime-dir",
                int(holder) if holder.isdecimal() else None,
            ) from None
        self._descriptor = descriptor
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        try:
            self._runtime_dir.remove_sockets()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        """Removes the sockets and gives the lock up."""
        try:
            self._runtime_dir.remove_sockets()
        finally:
            self._close()

    def _close(self) -> None:
        assert self._descriptor is not None  # entered before it is left
        os.close(self._descriptor)
        self._descriptor = None


class ReplacementLock:
    """The flock of the one server that is about to replace another, as a context manager.

    That other server hands nothing over while nobody holds it. The kernel releases it when the
    process ends. The file stays.
    """

    def __init__(self, runtime_dir: RuntimeDir) -> None:
        self._runtime_dir = runtime_dir
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        """Takes the lock. Raises :class:`InstanceRunning` if another server has it."""
        path = self._runtime_dir.replacement_file
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise InstanceRunning(
                f"another kvstore-server is about to replace the one that serves"
                f" {self._runtime_dir.path}: wait until it has"
            ) from None
        self._descriptor = descriptor
        return self

    def __exit__(self, *exception: object) -> None:
        """Gives the lock up."""
        assert self._descriptor is not None  # entered before it is left
        os.close(self._descriptor)
        self._descriptor = None


def is_replaced(runtime_dir: RuntimeDir) -> bool:
    """Returns whether a living server holds the folder's ``ReplacementLock``."""
    try:
        descriptor = os.open(runtime_dir.replacement_file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
