"""Runs a Python program that does not outlive the process that started it.

``python -m inference_worker.store.tied_process PARENT SIGNAL ARGUMENTS...`` becomes ``python
ARGUMENTS...``, to which the kernel sends SIGNAL when the thread of PARENT that started it ends,
however that ended (``prctl(2)``, ``PR_SET_PDEATHSIG``: kept over ``execve``).
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

# Of linux/prctl.h.
PR_SET_PDEATHSIG: Final = 1


def tied_command(number: signal.Signals, *arguments: str) -> list[str]:
    """Returns the command of a Python program that gets signal ``number`` when this process ends.

    The thread that starts it has to live as long as it shall.
    """
    return [sys.executable, "-m", __name__, str(os.getpid()), str(int(number)), *arguments]


def main(arguments: Sequence[str]) -> None:
    """Becomes the program; ends at once where the parent is gone already."""
    parent, number, *program = arguments
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        sys.exit("prctl: PR_SET_PDEATHSIG was refused")
    # Between the fork and the call it may have ended: then nothing would be sent.
    if os.getppid() == int(parent):
        os.execv(sys.executable, [sys.executable, *program])  # noqa: S606 - our own programs


if __name__ == "__main__":
    main(sys.argv[1:])
