"""Work on large buffers that lets other threads run meanwhile."""

import numpy as np


def copy_bytes(target: memoryview, source: memoryview) -> None:
    """Copies bytes into a buffer of their length, and releases the interpreter's lock meanwhile.

    An assignment to a slice holds the lock: 16 MiB stop all other threads for a millisecond.
    """
    if target.nbytes != source.nbytes:
        raise ValueError(f"{source.nbytes} bytes do not fill a buffer of {target.nbytes}")
    if source.nbytes:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


def clear_bytes(target: memoryview) -> None:
    """Writes zeros to a buffer, and releases the interpreter's lock meanwhile."""
    if target.nbytes:
        np.copyto(np.frombuffer(target, np.uint8), 0)
