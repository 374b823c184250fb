"""Processes that end with the process that started them."""

import os
import signal
from ctypes import CDLL

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Kills this process when the thread that made it ends. ``parent`` is that thread's process.

    Ends this process at once if the parent has already ended.
    """
    CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
