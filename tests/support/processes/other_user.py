"""Another user of the host, as which a thread of this process acts. Needs root."""

import ctypes
import os
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

# setgroups, setresgid and setresuid. The C library's change all threads of a process, the
# kernel's own change the one that calls.
NUMBERS = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147)}
POSSIBLE = os.geteuid() == 0 and platform.machine() in NUMBERS

Result = TypeVar("Result")


def as_user(uid: int, gid: int, action: Callable[[], Result]) -> Result:
    """Returns what ``action`` returns to a user with one group; raises what it raises."""

    def act() -> Result:
        libc = ctypes.CDLL(None, use_errno=True)
        no_groups, group, user = NUMBERS[platform.machine()]
        for call in ((no_groups, 0, 0, 0), (group, gid, gid, gid), (user, uid, uid, uid)):
            if libc.syscall(*call) != 0:
                raise OSError(ctypes.get_errno(), "cannot become another user")
        return action()

    # The thread stays that user, and ends.
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(act).result()
