"""Single keys of a terminal, without waiting for a line's end."""

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
    """Provides a call that waits so many seconds for a key, and returns it or nothing.

    Ctrl-C stays ``KeyboardInterrupt``. Where stdin is no terminal there are no keys, and it
    waits. The terminal is left as it was found.
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
