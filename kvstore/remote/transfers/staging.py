"""Memory of a thread for values on their way to an engine or from it."""

from collections.abc import Sequence


class Staging:
    """Memory that one thread uses again for each call of an engine.

    The thread drops it after a call that failed: the engine may not have returned, and still writes
    into it or reads it.
    """

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def buffers(self, sizes: Sequence[int]) -> list[memoryview]:
        """Returns a buffer of each size. Earlier ones must not be in use any more."""
        if sum(sizes) > self._memory.nbytes:
            self._memory = memoryview(bytearray(sum(sizes)))
        buffers, start = [], 0
        for size in sizes:
            buffers.append(self._memory[start : start + size])
            start += size
        return buffers

    def drop(self) -> None:
        """Drops the memory. A call that still runs keeps it."""
        self._memory = memoryview(b"")
