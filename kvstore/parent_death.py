"""The signal that the kernel sends a process when its parent ends."""

import ctypes

# Of linux/prctl.h.
PR_SET_PDEATHSIG = 1


def ignore_parent_death() -> None:
    """Have no signal come for the parent's end any more; in the main thread alone.

    A parent of many threads that is killed ends thread by thread, and the kernel sends
    the signal for each of those that its child was handed on to (``prctl(2)``,
    ``PR_SET_PDEATHSIG``): the second one would end a process that drains for the first.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
