"""The order of a step's work: on a CPU at once, on a device and its stand-in later."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from unittest.mock import patch

import torch

from device.card import Card
from device.client_driver import client_driver
from kvstore_client.memory.cuda import cuda_driver
from kvstore_vllm.blocks.block_copier import BlockCopier, Plane
from kvstore_vllm.blocks.descriptor_copier import DescriptorCopier, submit_to_cpu
from kvstore_vllm.rank import plan_executor
from kvstore_vllm.rank.plan_executor import PlanExecutor
from kvstore_vllm.rank.transfer_stream import HostStream, Timed
from vllm_rig.driver_copies import DriverCopies

# A tenth of a second of a device's clock.
CYCLES = 200_000_000
LIMIT = 60.0


class CpuQueue:
    """Does work at once, and copies as a rank of a CPU does."""

    device = "cpu"
    # Whether work is done after it was queued, so that transfers run beside it.
    is_late = False

    def queue(self, work: Callable[[], object]) -> None:
        """Does work of the step."""
        work()

    def keep_busy(self) -> None:
        """Does nothing: a CPU has no queue."""

    def go_on(self) -> None:
        """Does nothing: no work waits."""

    @property
    def is_busy(self) -> bool:
        """False: no work waits."""
        return False

    def wait(self) -> None:
        """Does nothing: all work is done."""

    @contextmanager
    def executor(self, planes: Sequence[Plane]) -> Iterator[PlanExecutor]:
        """Gives an executor of these blocks, and closes it."""
        executor = PlanExecutor(BlockCopier(list(planes)))
        try:
            yield executor
        finally:
            executor.close()


class CudaQueue:
    """The current stream of a GPU."""

    device = "cuda"
    is_late = True

    def queue(self, work: Callable[[], object]) -> None:
        """Launches work of the step."""
        work()

    def keep_busy(self) -> None:
        """Queues about a second of work."""
        torch.cuda._sleep(10 * CYCLES)

    def go_on(self) -> None:
        """Does nothing: the work ends by itself."""

    @property
    def is_busy(self) -> bool:
        """Returns whether queued work is under way."""
        return not torch.cuda.current_stream().query()

    def wait(self) -> None:
        """Waits for all work of the device."""
        torch.cuda.synchronize()

    @contextmanager
    def executor(self, planes: Sequence[Plane]) -> Iterator[PlanExecutor]:
        """Gives an executor of these blocks, and closes it."""
        executor = PlanExecutor(DescriptorCopier(planes, DriverCopies()))
        try:
            yield executor
        finally:
            executor.close()


class StandInQueue:
    """A device that is a thread of this process: it does the step's work in order, one by one.

    After :meth:`keep_busy` the thread waits for :meth:`go_on`. Copies are made by their own
    threads, as on a device, with the same executor, copier and descriptors.
    """

    device = "cpu"
    is_late = True

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._gate = Event()
        self._last: Future[object] | None = None

    def queue(self, work: Callable[[], object]) -> None:
        """Queues work of the step."""
        self._last = self._thread.submit(work)

    def keep_busy(self) -> None:
        """Queues a wait for :meth:`go_on`."""
        self._gate.clear()
        self.queue(lambda: self._gate.wait(LIMIT))

    def go_on(self) -> None:
        """Ends that wait."""
        self._gate.set()

    @property
    def is_busy(self) -> bool:
        """Returns whether queued work is under way."""
        return self._last is not None and not self._last.done()

    def wait(self) -> None:
        """Waits for all queued work."""
        self._gate.set()
        if self._last is not None:
            self._last.result(LIMIT)

    @contextmanager
    def executor(self, planes: Sequence[Plane]) -> Iterator[PlanExecutor]:
        """Gives an executor of these blocks, and closes it."""
        copier = DescriptorCopier(planes, submit_to_cpu)
        copier.device = torch.device("cuda:0")
        with (
            patch.object(plan_executor, "DeviceStream", lambda _: _StandInStream(self)),
            patch.object(cuda_driver, "_load", lambda: client_driver(Card())),
        ):
            executor = PlanExecutor(copier)
            try:
                yield executor
            finally:
                self.go_on()
                executor.close()

    def end_of_work(self) -> "Future[object] | None":
        """Returns the end of what is queued."""
        return self._last


class _StandInStream:
    """Copies after the marked work of a stand-in, on the thread that runs them."""

    def __init__(self, queue: StandInQueue) -> None:
        self._queue = queue

    def mark(self) -> "Future[object] | None":
        """Returns the end of the work that is queued."""
        return self._queue.end_of_work()

    def run(self, ready: "Future[object] | None", copy: Callable[[], int]) -> Timed:
        """Waits for the marked work, and copies."""
        if ready is not None:
            ready.result(LIMIT)
        return HostStream().run(None, copy)


StepQueue = CpuQueue | CudaQueue | StandInQueue
