"""The end of a process whose device fails for good. Needs no torch."""

import os
import sys
from contextlib import suppress
from typing import NoReturn

from inference_worker.errors import DEVICE_LOST_STATUS, DeviceLostError


def end_process(error: DeviceLostError) -> NoReturn:
    """Writes one line to standard error and ends with ``DEVICE_LOST_STATUS``, at once.

    Python's ordinary exit would call CUDA once more. CUDA's error there would abort the process
    with another status.
    """
    try:
        with suppress(OSError, ValueError):  # standard output is closed
            sys.stdout.flush()
        sys.stderr.write(
            f"device_lost: {error}; the process ends, and the store takes back what it held\n"
        )
        sys.stderr.flush()
    finally:
        # The status tells the same if standard error is closed.
        os._exit(DEVICE_LOST_STATUS)
