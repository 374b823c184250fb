"""Processes that do not outlive the one that started them."""

import os
import signal
from ctypes import CDLL

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have this process killed when the thread that made it ends; ``parent`` is its process.

    Ends it at once where that is gone already.
    """
    CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
