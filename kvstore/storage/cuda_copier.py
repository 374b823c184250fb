"""Copies between a device's slots and memory of the host, on a thread and a stream of their own."""

import math
import mmap
from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog

from kvstore.storage.copies import DeviceCopy
from kvstore.storage.cuda_runtime import CudaRuntime, address_of
from kvstore.storage.errors import CudaFailed, DeviceUnavailable

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

T = TypeVar("T")

# One registration beyond 512 GiB fails on drivers since R580, however much memory there is.
PIECE_BYTES = 64 << 30


class CudaCopier:
    """Copies pages to and from one device, and registers the host's memory for it. Thread-safe.

    A whole batch is begun on the stream and waited for once, on a thread of its own, so
    that nobody who reads a page of the device meanwhile waits for it.
    """

    def __init__(self, number: int, runtime: CudaRuntime) -> None:
        """Begin nothing: the thread, and its stream, come with the first call."""
        self._number = number
        self._runtime = runtime
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kvstore-cuda-copies")
        self._stream: int | None = None

    def begin_all(self, copies: Items[DeviceCopy]) -> Callable[[], list[CudaFailed | None]]:
        """Begin copies; return what waits for them, and says of each why it was not done, or None.

        An error that CUDA reports when it is waited for is of all of them: it does not
        say whose it is.
        """
        return self._thread.submit(self._copy, copies).result

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
        """End the thread. What is registered is left to the end of the process."""
        self._thread.shutdown()

    def _run(self, work: Callable[[], T]) -> T:
        return self._thread.submit(work).result()

    def _begin(self) -> int:
        """Return the stream, of the device that this thread selects the first time."""
        if self._stream is None:
            try:
                self._runtime.select(self._number)
            except DeviceUnavailable as error:
                raise CudaFailed(str(error)) from error
            self._stream = self._runtime.make_stream()
        return self._stream

    def _copy(self, copies: Items[DeviceCopy]) -> list[CudaFailed | None]:
        try:
            stream = self._begin()
        except CudaFailed as error:
            return [error] * len(copies)
        # Whatever is raised: what was begun writes to memory that others may be given next.
        try:
            failures = [self._copy_one(each, stream) for each in copies]
        finally:
            ended = self._wait(stream)
        return [each or ended for each in failures]

    def _copy_one(self, copy: DeviceCopy, stream: int) -> CudaFailed | None:
        begin = self._runtime.begin_write if copy.inwards else self._runtime.begin_read
        try:
            begin(copy.address, copy.content, stream)
        except CudaFailed as error:
            return error
        return None

    def _wait(self, stream: int) -> CudaFailed | None:
        try:
            self._runtime.wait(stream)
        except CudaFailed as error:
            return error
        return None

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
