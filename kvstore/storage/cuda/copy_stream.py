"""Copies in one direction between a device and the host: a stream and its two threads."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeAlias

import structlog

from kvstore.storage.cuda.cupy_runtime import CupyRuntime
from kvstore.storage.errors import CudaFailed
from kvstore.storage.slot_copies import DeviceCopy

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# One call of the driver begins all pages below this size. A call for each page takes about 8 us, in
# which PCIe 5 moves about 400 KB (an estimate; not measured).
BATCHED_BELOW_BYTES = 512 << 10
# Far below the 51,828 copies with which a driver crashed (R580, vllm-project/vllm issue 49276). A
# batch of the mover has 64 or few more; pages from the disk come by the thousand if they are small.
MOST_IN_A_CALL = 512

Failures: TypeAlias = list[CudaFailed | None]


class CopyStream:
    """Begins batches of copies on a CUDA stream of its own and waits for each. Thread-safe.

    One thread begins batches, another waits for them. So a batch begins while the one before it is
    still copied. Batches end in the order in which they began.
    """

    def __init__(self, number: int, runtime: CupyRuntime, name: str) -> None:
        """Prepares for device ``number``. Threads and stream are made with the first batch."""
        self._number = number
        self._runtime = runtime
        self._beginning = ThreadPoolExecutor(1, thread_name_prefix=f"kvstore-cuda-{name}")
        self._waiting = ThreadPoolExecutor(1, thread_name_prefix=f"kvstore-cuda-{name}-wait")
        self._stream: int | None = None
        self._refusal_logged = False

    def begin_all(self, copies: Items[DeviceCopy]) -> Callable[[], Failures]:
        """Begins a batch. Returns a wait for it, which returns each copy's error, or None.

        If CUDA reports an error during the wait, all copies of the batch get it, since CUDA
        does not name the one that failed. No copy is under way when the wait returns or raises.
        """
        begun = self._beginning.submit(self._begin, copies)
        return lambda: begun.result().result()

    def close(self) -> None:
        """Waits for all batches, and ends the threads."""
        self._beginning.shutdown()
        self._waiting.shutdown()

    def _begin(self, copies: Items[DeviceCopy]) -> "Future[Failures]":
        """Begins copies on the first thread; returns a future of the second thread's wait."""
        try:
            return self._submit(copies)
        except BaseException:
            # These copies write to memory that may soon belong to others.
            self._drain()
            raise

    def _submit(self, copies: Items[DeviceCopy]) -> "Future[Failures]":
        """Begins copies and queues their wait on the second thread."""
        try:
            stream = self._ready()
            failures = self._begin_each(copies, stream)
            event = self._runtime.record_event(stream)
        except CudaFailed as error:
            return self._waiting.submit(self._fail, copies, error)
        return self._waiting.submit(self._wait, event, copies, failures)

    def _ready(self) -> int:
        """Returns the stream. The first time, makes it and selects the device on both threads."""
        if self._stream is None:
            self._runtime.use(self._number)
            self._waiting.submit(self._runtime.use, self._number).result()
            self._stream = self._runtime.make_stream()
        return self._stream

    def _begin_each(self, copies: Items[DeviceCopy], stream: int) -> Failures:
        """Begins small copies by as few calls as possible, the others one by one."""
        small = [each for each in copies if each.content.nbytes < BATCHED_BELOW_BYTES]
        batched = len(small) > 1 and all(
            self._begin_batch(small[first : first + MOST_IN_A_CALL], stream)
            for first in range(0, len(small), MOST_IN_A_CALL)
        )
        return [
            None
            if batched and each.content.nbytes < BATCHED_BELOW_BYTES
            else self._begin_one(each, stream)
            for each in copies
        ]

    def _begin_batch(self, copies: Items[DeviceCopy], stream: int) -> bool:
        """Begins copies by one call. Returns False if the caller has to begin them one by one.

        Copies that a refused call began, or a call before it, are begun again. That is harmless:
        both times they write the same bytes, in the stream's order.
        """
        try:
            return self._runtime.begin_batch(copies, stream)
        except CudaFailed as error:
            if not self._refusal_logged:
                log.warning("batched_copies_refused", pages=len(copies), why=str(error))
                self._refusal_logged = True
            return False

    def _begin_one(self, copy: DeviceCopy, stream: int) -> CudaFailed | None:
        begin = self._runtime.begin_write if copy.inwards else self._runtime.begin_read
        try:
            begin(copy.address, copy.content, stream)
        except CudaFailed as error:
            return error
        return None

    def _wait(self, event: int, copies: Items[DeviceCopy], failures: Failures) -> Failures:
        """Waits for a batch; ``copies`` keeps the batch's memory alive until then."""
        ended = None
        try:
            self._runtime.wait_for_event(event)
        except CudaFailed as error:
            ended = error
        except BaseException:
            self._drain()
            raise
        return [failure or ended for _, failure in zip(copies, failures, strict=True)]

    def _fail(self, copies: Items[DeviceCopy], error: CudaFailed) -> Failures:
        """Waits for the copies of a batch that has no event; all of them failed."""
        self._drain()
        return [error for _ in copies]

    def _drain(self) -> None:
        """Waits for the whole stream, if it exists."""
        if self._stream is not None:
            with suppress(CudaFailed):
                self._runtime.wait(self._stream)
