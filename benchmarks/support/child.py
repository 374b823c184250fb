"""Processes that end with the process that started them."""

import os
import signal
from ctypes import CDLL

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Kills this process when the thread of ``parent`` that made it ends, or has ended."""
    CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
