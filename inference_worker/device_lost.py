"""The end of a process whose device fails for good."""

import os
import sys
from contextlib import suppress
from typing import NoReturn

from inference_worker.errors import DEVICE_LOST_STATUS, DeviceLostError


def end_process(error: DeviceLostError) -> NoReturn:
    """Write one line to standard error and end with ``DEVICE_LOST_STATUS``, at once.

    The ordinary end of Python would call CUDA once more, and CUDA's error there aborts the
    process under another status.
    """
    try:
        with suppress(OSError, ValueError):  # nobody reads it any more
            sys.stdout.flush()
        sys.stderr.write(
            f"device_lost: {error}; the process ends, and the store takes back what it held\n"
        )
        sys.stderr.flush()
    finally:
        # Also if nobody reads standard error: the status says the same.
        os._exit(DEVICE_LOST_STATUS)
