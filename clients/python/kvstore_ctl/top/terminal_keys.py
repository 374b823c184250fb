"""Single keys of a terminal, without waiting for the end of a line."""

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """Yields a function that waits some seconds for a key; it returns the key or "".

    Ctrl-C stays ``KeyboardInterrupt``. If stdin is no terminal, the function only waits. The
    terminal's settings are restored at the end.
    """
    if not sys.stdin.isatty():
        yield _wait
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return os.read(descriptor, 1).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(descriptor)
        yield read
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _wait(seconds: float) -> str:
    Event().wait(seconds)
    return ""
