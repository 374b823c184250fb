"""The process: its signals, its service manager, its parent, and the file lock of its folder."""

import ctypes
import fcntl
import os
import select
import signal
import socket
from collections.abc import Collection, Mapping
from contextlib import suppress
from types import FrameType
from typing import Self

from kvstore.files import RuntimeDir


class Signals:
    """Signals that the main thread waits for, once entered.

    Blocked signals and ``sigwait`` are not enough: libraries such as numpy's BLAS start threads
    at their import, which block nothing, and a signal to one of those would end the process. So
    each signal has a handler, and Python writes its number to a descriptor
    (``signal.set_wakeup_fd``), in order.
    """

    def __init__(self, numbers: Collection[signal.Signals]) -> None:
        self._numbers = tuple(numbers)
        self._reader, self._writer = socket.socketpair()
        self._writer.settimeout(0)

    def __enter__(self) -> Self:
        """Takes the signals from now on. Only the main thread may call it."""
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for each in self._numbers:
            signal.signal(each, _noted)
        return self

    def __exit__(self, *exception: object) -> None:
        """Restores the default handlers."""
        self.let_go(self._numbers)
        signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()

    def wait(self) -> signal.Signals:
        """Waits for the next signal and returns it."""
        return signal.Signals(self._reader.recv(1)[0])

    def came(self, seconds: float) -> bool:
        """Waits at most ``seconds`` for a signal. Returns whether it came; ``wait`` keeps it."""
        return bool(select.select([self._reader], [], [], seconds)[0])

    def let_go(self, numbers: Collection[signal.Signals]) -> None:
        """Restores the kernel's default action, so these signals end the process."""
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)


def _noted(number: int, frame: FrameType | None) -> None:
    """Does nothing, because Python writes the signal to the descriptor."""


class ServiceManager:
    """The service manager of this process, if there is one. Thread-safe.

    The protocol is one datagram a message to ``$NOTIFY_SOCKET`` (man 3 sd_notify).
    A manager that does not read its socket changes nothing here.
    """

    def __init__(self, address: str | None) -> None:
        """``address`` is a socket's path, ``@`` and an abstract name, or None without a manager."""
        self._address = address.replace("@", "\0", 1) if address else None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "ServiceManager":
        """Returns the manager that started this process."""
        return cls(environment.get("NOTIFY_SOCKET"))

    def ready(self) -> None:
        """Reports that the server accepts calls."""
        self._tell("READY=1")

    def alive(self) -> None:
        """Reports that the server is alive. Without these reports systemd restarts it."""
        self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """Reports that the server drains and will end."""
        self._tell("STOPPING=1")

    def _tell(self, message: str) -> None:
        if self._address is None:
            return
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
        with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as sender:
            sender.sendto(message.encode(), self._address)


# From linux/prctl.h.
PR_SET_PDEATHSIG = 1


def ignore_parent_death() -> None:
    """Stops signals for the parent's end. Only the main thread may call it.

    The threads of a killed parent end one by one, and the kernel sends a signal for each thread
    that the child belonged to (``prctl(2)``, ``PR_SET_PDEATHSIG``). The second signal would end a
    process that drains because of the first.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)


MODE = 0o600
MAX_PID_BYTES = 32


class InstanceRunning(Exception):
    """Another server holds the folder."""


class InstanceLock:
    """The flock of a runtime folder, as a context manager.

    The kernel releases it when the process ends, in whatever way, so no one has to remove
    anything. The file stays: removing it would let two servers lock two files of one name. Take
    the lock before you touch the folder, because gRPC silently takes a living server's socket.
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
                f" {self._runtime_dir.path}: stop it, or choose another --runtime-dir"
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
