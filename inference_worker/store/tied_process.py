"""Runs a Python program that ends when the process that started it ends.

``python -m inference_worker.store.tied_process PARENT SIGNAL ARGUMENTS...`` becomes ``python
ARGUMENTS...``. The kernel sends it SIGNAL when the thread of PARENT that started it ends, for any
reason (``prctl(2)``, ``PR_SET_PDEATHSIG``: kept over ``execve``).
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

# From linux/prctl.h.
PR_SET_PDEATHSIG: Final = 1


def tied_command(number: signal.Signals, *arguments: str) -> list[str]:
    """Returns the command of a Python program that gets signal ``number`` when this process ends.

    The thread that starts the command must live as long as the program should.
    """
    return [sys.executable, "-m", __name__, str(os.getpid()), str(int(number)), *arguments]


def main(arguments: Sequence[str]) -> None:
    """Becomes the program; ends at once if the parent has already ended."""
    parent, number, *program = arguments
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        sys.exit("prctl: PR_SET_PDEATHSIG was refused")
    # The parent may have ended before the call: then no signal would be sent.
    if os.getppid() == int(parent):
        os.execv(sys.executable, [sys.executable, *program])  # noqa: S606 - our own programs


if __name__ == "__main__":
    main(sys.argv[1:])
