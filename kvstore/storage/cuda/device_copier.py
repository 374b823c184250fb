"""Copies between a device's slots and memory of the host, and the registration of that memory."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog

from kvstore.storage.cuda.copy_stream import CopyStream
from kvstore.storage.cuda.cupy_runtime import CupyRuntime, address_of
from kvstore.storage.errors import CudaFailed
from kvstore.storage.slot_copies import DeviceCopy

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

T = TypeVar("T")


class CudaCopier:
    """Copies pages to and from one device, and registers the host's memory for it. Thread-safe.

    Each direction has its own stream and threads, since PCIe carries both at once. So a page that a
    request waits for never waits for pages on their way out. Registration has its own thread, so
    copies do not wait for it.
    """

    def __init__(self, number: int, runtime: CupyRuntime) -> None:
        """Prepares for device ``number``. Threads and streams are made with the first call."""
        self._number = number
        self._runtime = runtime
        self._inwards = CopyStream(number, runtime, "in")
        self._outwards = CopyStream(number, runtime, "out")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kvstore-cuda-register")
        self._selected = False

    def begin_all(self, copies: Items[DeviceCopy]) -> Callable[[], list[CudaFailed | None]]:
        """Begins copies. Returns a wait for them, which returns each one's error, or None.

        If CUDA reports an error during the wait, all of this call's copies in that direction
        get it. If this call or the wait raises, no copy is under way.
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

    def register(self, memory: memoryview) -> Callable[[], None]:
        """Registers memory of the host by one call; returns a function that undoes it.

        Raises :class:`CudaFailed`. The memory must exist until the caller has undone the
        registration, which it does once. Logs a registration that CUDA does not undo.
        """
        address, size = address_of(memory), memory.nbytes
        self._run(lambda: self._register(address, size))
        return lambda: self._run(lambda: self._unregister(address))

    def close(self) -> None:
        """Ends the threads. Registered memory stays registered until the process ends."""
        for each in (self._inwards, self._outwards):
            each.close()
        self._thread.shutdown()

    def _run(self, work: Callable[[], T]) -> T:
        return self._thread.submit(work).result()

    def _begin(self) -> None:
        """Selects the device on the registration thread, the first time."""
        if not self._selected:
            self._runtime.use(self._number)
            self._selected = True

    def _register(self, address: int, size: int) -> None:
        self._begin()
        self._runtime.register(address, size)

    def _unregister(self, address: int) -> None:
        try:
            self._runtime.unregister(address)
        except CudaFailed as error:
            log.warning("host_memory_still_registered", why=str(error))


def _both(
    inwards: Items[bool],
    end_inwards: Callable[[], list[CudaFailed | None]],
    end_outwards: Callable[[], list[CudaFailed | None]],
) -> Callable[[], list[CudaFailed | None]]:
    """Returns a wait for both directions; its errors are in the order of ``inwards``."""

    def end() -> list[CudaFailed | None]:
        try:
            first = iter(end_inwards())
        finally:
            second = iter(end_outwards())
        return [next(first if each else second) for each in inwards]

    return end
