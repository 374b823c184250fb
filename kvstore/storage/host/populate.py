"""Memory of a mapped file, allocated and zeroed by several threads.

fallocate holds the file's inode lock, so it does not run in parallel on one file, and it leaves the
zeroing to the first touch. MADV_POPULATE_WRITE does both at once, and its threads run in parallel
(benchmarks/start.py compares them).
"""

import ctypes
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

# Since Linux 5.14; Python's mmap has no name for it.
MADV_POPULATE_WRITE = 23
# Python's mmap.madvise holds the GIL during the call; ctypes releases it.
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
# One or two milliseconds a call; other threads' mmap and munmap wait for it.
STEP_BYTES = 4 << 20
# More do not help: a few processors already use all of a socket's memory bandwidth.
MOST_THREADS = 16


def populate(address: int, size: int, threads: int) -> None:
    """Allocates ``size`` bytes of a writable shared mapping; existing pages keep their bytes.

    ``address`` is that of a page of the kernel's. Uses at most ``threads`` threads, in steps of
    ``STEP_BYTES``. Raises ``OSError``: EINVAL on a kernel before Linux 5.14, ENOMEM if the kernel
    refuses a page. Some pages are then allocated.
    """
    steps = iter(range(0, size, STEP_BYTES))
    mutex = Lock()

    def work() -> None:
        while True:
            with mutex:
                step = next(steps, None)
            if step is None:
                return
            try:
                _populate(address + step, min(STEP_BYTES, size - step))
            except OSError:
                with mutex:
                    # The other threads stop after their current step.
                    list(steps)
                raise

    count = min(threads, -(-size // STEP_BYTES))
    if count <= 1:
        work()
        return
    with ThreadPoolExecutor(count, thread_name_prefix="kvstore-populate") as pool:
        for each in [pool.submit(work) for _ in range(count)]:
            each.result()


def _populate(address: int, size: int) -> None:
    if _LIBC.madvise(address, size, MADV_POPULATE_WRITE) == 0:
        return
    number = ctypes.get_errno()
    if number == errno.EFAULT:
        # A write to the page would have ended the process by SIGBUS.
        number = errno.ENOMEM
    raise OSError(number, os.strerror(number))
