"""A worker's device: what it is told to write it writes later, in two halves."""

from collections import deque
from collections.abc import Callable

from simulation.kernel import Kernel, Process, SimThread
from simulation.pages import HALF, Oracle, Place, User

# How long half a page takes, on average, in seconds.
MEAN_WRITE = 0.002


class Device:
    """One queue of writes for each process. It goes on while its process is stopped."""

    def __init__(self, kernel: Kernel, process: Process, oracle: Oracle) -> None:
        self._kernel, self._process, self._oracle = kernel, process, oracle
        self._queue: deque[tuple[User, Place, memoryview, bytes]] = deque()
        self._busy = False
        self._waiting: list[SimThread] = []
        self._then: dict[SimThread | None, Callable[[], None]] = {}

    def write(self, user: User, place: Place, view: memoryview, content: bytes) -> None:
        """Begins to write a page."""
        for half in (slice(0, HALF), slice(HALF, None)):
            self._queue.append((user, place, view[half], content[half]))
        self._oracle.pages_written += 1
        self._go_on()

    def wait(self) -> None:
        """Waits until all is written."""
        while self._queue:
            assert self._kernel.running is not None
            self._waiting.append(self._kernel.running)
            self._kernel.park()
        then = self._then.pop(self._kernel.running, None)
        if then is not None:
            then()

    def then(self, action: Callable[[], None]) -> None:
        """Does something as soon as the running thread has waited, which the client has it do."""
        self._then[self._kernel.running] = action

    def _go_on(self) -> None:
        if self._queue and not self._busy:
            self._busy = True
            self._kernel.after(self._kernel.random.expovariate(1 / MEAN_WRITE), self._write_half)

    def _write_half(self) -> None:
        self._busy = False
        if not self._process.alive:
            self._queue.clear()
            return
        user, place, view, content = self._queue.popleft()
        self._oracle.written(user, place)
        view[:] = content
        self._go_on()
        if not self._queue:
            for thread in self._waiting:
                self._kernel.wake(thread)
            self._waiting.clear()
