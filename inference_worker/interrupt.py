"""Ctrl-C that stops what is under way, and not the program."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether SIGINT came."""

    def __init__(self) -> None:
        """Start without."""
        self.came = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """Take a SIGINT; raises ``KeyboardInterrupt`` for the second."""
        del number, frame
        if self.came:
            raise KeyboardInterrupt
        self.came = True


@contextmanager
def noted_interrupt() -> Iterator[Interrupt]:
    """Have the first SIGINT noted instead of raised; for the main thread."""
    interrupt = Interrupt()
    before = signal.signal(signal.SIGINT, interrupt.note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
