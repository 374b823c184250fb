"""Signals of the process: those that end it or reload its settings, and its parent's death."""

import ctypes
import select
import signal
import socket
from collections.abc import Collection
from types import FrameType
from typing import Self

# Of linux/prctl.h.
PR_SET_PDEATHSIG = 1


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


def ignore_parent_death() -> None:
    """Stops signals for the parent's end. Only the main thread may call it.

    The threads of a killed parent end one by one, and the kernel sends a signal for each thread
    that the child belonged to (``prctl(2)``, ``PR_SET_PDEATHSIG``). The second signal would end a
    process that drains because of the first.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
