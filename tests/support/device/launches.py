"""The launches of a test's worker on its device, and its waits there."""

from collections import deque
from collections.abc import Callable
from threading import Thread

import torch

from inference_worker.model.device import DeviceWork

# Kernels of one launch of a graph: about two milliseconds of work.
KERNELS = 1000
# Launches that a killed worker leaves queued, at least.
LAUNCHES = 8


class StreamWait:
    """The wait of a client: for the work of one stream, once it is chosen."""

    def __init__(self) -> None:
        self.work = DeviceWork()

    def wait(self) -> None:
        """Waits for the stream."""
        self.work.wait()


class EndlessWrites:
    """Adds one to numbers on their device, from a thread of its own, until the process ends.

    ``unfinished`` counts the launches that are queued and not done.
    """

    def __init__(self, numbers: torch.Tensor) -> None:
        self.unfinished = 0
        self._numbers = numbers
        work = self._write_here if numbers.device.type == "cpu" else self._launch()
        Thread(target=work, daemon=True).start()

    def _write_here(self) -> None:
        # A CPU has no queue: the current write counts as many.
        self.unfinished = LAUNCHES
        while True:
            self._numbers.add_(1)

    def _launch(self) -> Callable[[], None]:
        self._numbers.add_(1)
        graph = torch.cuda.CUDAGraph()
        # In torch's default mode, calls of other threads end a capture unless their mode is
        # relaxed, as that of the client's device thread is.
        with torch.cuda.graph(graph):
            for _ in range(KERNELS):
                self._numbers.add_(1)

        def launch() -> None:
            queued: deque[torch.cuda.Event] = deque()
            while True:
                graph.replay()
                queued.append(torch.cuda.Event())
                queued[-1].record()
                while queued and queued[0].query():
                    queued.popleft()
                self.unfinished = len(queued)

        return launch
