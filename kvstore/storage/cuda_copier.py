"""Copies between a device's slots and memory of the host, on a thread and a stream of their own."""

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

    def register(self, memory: memoryview) -> Callable[[], None]:
        """Register memory of the host by one call; return what undoes it.

        Raises :class:`CudaFailed`. The memory has to be there until it was undone, which
        is called once. Logs a registration that CUDA does not undo.
        """
        address, size = address_of(memory), memory.nbytes
        self._run(lambda: self._register(address, size))
        return lambda: self._run(lambda: self._unregister(address))

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

    def _register(self, address: int, size: int) -> None:
        self._begin()
        self._runtime.register(address, size)

    def _unregister(self, address: int) -> None:
        try:
            self._runtime.unregister(address)
        except CudaFailed as error:
            log.warning("host_memory_still_registered", why=str(error))
