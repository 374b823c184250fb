"""Copies between a device's slots and memory of the host, and the registration of that memory."""

import math
import mmap
from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog

from kvstore.storage.copies import DeviceCopy
from kvstore.storage.cuda_copy_stream import CopyStream
from kvstore.storage.cuda_runtime import CudaRuntime, address_of
from kvstore.storage.errors import CudaFailed

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

T = TypeVar("T")

# One registration beyond 512 GiB fails on drivers since R580, however much memory there is.
PIECE_BYTES = 64 << 30


class CudaCopier:
    """Copies pages to and from one device, and registers the host's memory for it. Thread-safe.

    Each direction has a stream and threads of its own, since PCIe carries both at once: a
    page that a request waits for never waits for pages on their way out. Registration has
    a third thread, so copies do not wait for it.
    """

    def __init__(self, number: int, runtime: CudaRuntime) -> None:
        """Prepare for device ``number``. Threads and streams are made with the first call."""
        self._number = number
        self._runtime = runtime
        self._inwards = CopyStream(number, runtime, "in")
        self._outwards = CopyStream(number, runtime, "out")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kvstore-cuda-register")
        self._selected = False

    def begin_all(self, copies: Items[DeviceCopy]) -> Callable[[], list[CudaFailed | None]]:
        """Begin copies. Returns what waits for them and returns each one's error, or None.

        An error that CUDA reports while copies are waited for is returned for all of this
        call's copies in that direction. If this or the wait raises, no copy is under way.
        """
        inwards = [each for each in copies if each.inwards]
        outwards = [each for each in copies if not each.inwards]
        if not outwards:
            return self._inwards.begin_all(inwards)
        if not inwards:
            return self._outwards.begin_all(outwards)
        return _both(
            [each.inwards for each in copies],
            self._inwards.begin_all(inwards),
            self._outwards.begin_all(outwards),
        )

    def register(self, memory: memoryview, slot_bytes: int) -> Callable[[], None]:
        """Register memory of the host, cut into slots; return what undoes it.

        What cannot be registered is logged, and copied all the same: the driver takes
        it through memory of its own, at a fraction of the speed. The memory has to be
        there until it was undone.
        """
        address, size = address_of(memory), memory.nbytes
        registered = self._run(lambda: self._register(address, pieces(size, slot_bytes)))
        return lambda: self._run(lambda: self._unregister(registered))

    def close(self) -> None:
        """End the threads. What is registered is left to the end of the process."""
        for each in (self._inwards, self._outwards):
            each.close()
        self._thread.shutdown()

    def _run(self, work: Callable[[], T]) -> T:
        return self._thread.submit(work).result()

    def _begin(self) -> None:
        """Select the device on the thread that registers, the first time."""
        if not self._selected:
            self._runtime.use(self._number)
            self._selected = True

    def _register(self, address: int, sizes: Items[int]) -> list[int]:
        """Return the addresses of the pieces that are registered: all, or none."""
        registered: list[int] = []
        try:
            self._begin()
            for size in sizes:
                self._runtime.register(address, size)
                registered.append(address)
                address += size
        except CudaFailed as error:
            log.warning("host_memory_not_registered", size_bytes=sum(sizes), why=str(error))
            self._unregister(registered)
            registered = []
        return registered

    def _unregister(self, registered: Items[int]) -> None:
        for address in registered:
            try:
                self._runtime.unregister(address)
            except CudaFailed as error:
                log.warning("host_memory_still_registered", why=str(error))


def _both(
    inwards: Items[bool],
    end_inwards: Callable[[], list[CudaFailed | None]],
    end_outwards: Callable[[], list[CudaFailed | None]],
) -> Callable[[], list[CudaFailed | None]]:
    """Return what waits for both directions and returns errors in the order of ``inwards``."""

    def end() -> list[CudaFailed | None]:
        try:
            first = iter(end_inwards())
        finally:
            second = iter(end_outwards())
        return [next(first if each else second) for each in inwards]

    return end


def pieces(size_bytes: int, slot_bytes: int) -> list[int]:
    """Return the sizes of the pieces that an extent is registered in, at most PIECE_BYTES each.

    They end between slots and between the kernel's pages, since CUDA refuses a copy that is
    partly of one registration and partly of another. Slots without such ends give one piece.
    """
    unit = math.lcm(slot_bytes, mmap.PAGESIZE)
    step = PIECE_BYTES // unit * unit or size_bytes
    if size_bytes <= PIECE_BYTES:
        step = size_bytes
    return [min(step, size_bytes - start) for start in range(0, size_bytes, step)]
