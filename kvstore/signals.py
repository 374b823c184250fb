"""Signals that a process waits for, whichever of its threads the kernel hands them to."""

import select
import signal
import socket
from collections.abc import Collection
from types import FrameType
from typing import Self


class Signals:
    """Signals of some numbers, to be waited for in the main thread, once entered.

    Blocking them and ``sigwait`` is not enough: libraries start threads as they are
    imported (numpy's BLAS does), which block nothing, and a signal that one of those
    gets would end the process at once. So each has a handler, and Python tells by a
    descriptor which came (``signal.set_wakeup_fd``), in their order.
    """

    def __init__(self, numbers: Collection[signal.Signals]) -> None:
        self._numbers = tuple(numbers)
        self._reader, self._writer = socket.socketpair()
        self._writer.settimeout(0)

    def __enter__(self) -> Self:
        """Take the signals from now on; in the main thread alone."""
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for each in self._numbers:
            signal.signal(each, _noted)
        return self

    def __exit__(self, *exception: object) -> None:
        """Let them do to the process what they do to others."""
        self.let_go(self._numbers)
        signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()

    def wait(self) -> signal.Signals:
        """Wait for the next one and return it."""
        return signal.Signals(self._reader.recv(1)[0])

    def came(self, seconds: float) -> bool:
        """Wait for one, for so long at most, and return whether it came; ``wait`` has it still."""
        return bool(select.select([self._reader], [], [], seconds)[0])

    def let_go(self, numbers: Collection[signal.Signals]) -> None:
        """Let signals end the process again, as the kernel has it."""
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)


def _noted(number: int, frame: FrameType | None) -> None:
    """Do nothing: the descriptor tells."""
