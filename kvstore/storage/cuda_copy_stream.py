"""Copies of one direction between a device and the host: a stream and its two threads."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeAlias

import structlog

from kvstore.storage.copies import DeviceCopy
from kvstore.storage.cuda_runtime import CudaRuntime
from kvstore.storage.errors import CudaFailed

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Pages below this size are begun by one call of the driver. A call for each takes some 8 us,
# in which PCIe 5 moves about 400 KB (an estimate; not measured).
BATCHED_BELOW_BYTES = 512 << 10
# Far below the 51,828 copies with which a driver crashed (R580, vllm-project/vllm issue 49276). A
# batch of the mover has 64 or few more; pages from the disk come by the thousand if they are small.
MOST_IN_A_CALL = 512

Failures: TypeAlias = list[CudaFailed | None]


class CopyStream:
    """Begins batches of copies on a CUDA stream of its own and waits for each. Thread-safe.

    One thread begins batches, another waits for them, so a batch is begun while the one
    before it is still copied. Batches end in the order in which they were begun.
    """

    def __init__(self, number: int, runtime: CudaRuntime, name: str) -> None:
        """Prepare for device ``number``. Threads and stream are made with the first batch."""
        self._number = number
        self._runtime = runtime
        self._beginning = ThreadPoolExecutor(1, thread_name_prefix=f"kvstore-cuda-{name}")
        self._waiting = ThreadPoolExecutor(1, thread_name_prefix=f"kvstore-cuda-{name}-wait")
        self._stream: int | None = None
        self._refusal_logged = False

    def begin_all(self, copies: Items[DeviceCopy]) -> Callable[[], Failures]:
        """Begin a batch. Returns what waits for it and returns each copy's error, or None.

        An error that CUDA reports while the batch is waited for is returned for all of its
        copies, since CUDA does not name the one that failed. No copy is under way when the
        wait returns or raises.
        """
        begun = self._beginning.submit(self._begin, copies)
        return lambda: begun.result().result()

    def close(self) -> None:
        """Wait for what was begun, and end the threads."""
        self._beginning.shutdown()
        self._waiting.shutdown()

    def _begin(self, copies: Items[DeviceCopy]) -> "Future[Failures]":
        """Begin copies on the first thread; the second returns the future's result."""
        try:
            return self._submit(copies)
        except BaseException:
            # Copies that were begun write to memory that may be given to others next.
            self._drain()
            raise

    def _submit(self, copies: Items[DeviceCopy]) -> "Future[Failures]":
        """Begin copies and give their wait to the second thread."""
        try:
            stream = self._ready()
            failures = self._begin_each(copies, stream)
            event = self._runtime.record_event(stream)
        except CudaFailed as error:
            return self._waiting.submit(self._fail, copies, error)
        return self._waiting.submit(self._wait, event, copies, failures)

    def _ready(self) -> int:
        """Return the stream. The first time, makes it and selects the device on both threads."""
        if self._stream is None:
            self._runtime.use(self._number)
            self._waiting.submit(self._runtime.use, self._number).result()
            self._stream = self._runtime.make_stream()
        return self._stream

    def _begin_each(self, copies: Items[DeviceCopy], stream: int) -> Failures:
        """Begin small copies by as few calls as possible, the others one by one."""
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
        """Begin copies by one call. Returns False if they have to be begun one by one.

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
        """Wait for a batch, whose memory ``copies`` keeps alive until then."""
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
        """Wait for what was begun of a batch that has no event; all of it failed."""
        self._drain()
        return [error for _ in copies]

    def _drain(self) -> None:
        """Wait for all that was begun, if the stream exists."""
        if self._stream is not None:
            with suppress(CudaFailed):
                self._runtime.wait(self._stream)
