"""Times of a device's work, without the time that the host needs to launch it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch

# Cycles of ``torch.cuda._sleep`` in a second, at most; a slower clock holds for longer.
CYCLES_PER_SECOND = 2e9
# Number of tries after a hold that was too short, each twice as long as the one before.
ATTEMPTS = 4


class Clock(Protocol):
    """Marks points in a device's work and says how far apart they are."""

    def mark(self) -> Any:  # noqa: ANN401  # a clock's own
        """Marks the point after all work queued so far."""
        ...

    def seconds(self, begin: Any, end: Any) -> float:  # noqa: ANN401  # as above
        """Returns the time between two marks that the device has passed."""
        ...

    def hold(self, seconds: float) -> Callable[[], bool]:
        """Keeps the device busy for about so long. Returns a function that says if it still is."""
        ...

    def synchronize(self) -> None:
        """Waits until the device has passed all marks."""
        ...


class CudaClock:
    """CUDA events on a device's current stream."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)

    def mark(self) -> torch.cuda.Event:
        """Records an event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Returns the seconds between two events; CUDA counts milliseconds."""
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1e3

    def hold(self, seconds: float) -> Callable[[], bool]:
        """Queues a kernel that only passes the given time."""
        with torch.cuda.device(self._device):
            # No other kernel of torch runs for a given time.
            torch.cuda._sleep(int(seconds * CYCLES_PER_SECOND))  # noqa: SLF001
        held = self.mark()
        return lambda: not held.query()

    def synchronize(self) -> None:
        """Waits for the device."""
        torch.cuda.synchronize(self._device)


class WallClock:
    """The host's clock, for a CPU: its work is done when the call returns."""

    def mark(self) -> float:
        """Returns the time."""
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        """Returns the difference."""
        return end - begin

    def hold(self, seconds: float) -> Callable[[], bool]:
        """Does nothing: a CPU has no queue."""
        del seconds
        return lambda: True

    def synchronize(self) -> None:
        """Does nothing: a CPU's work is already done."""


def device_clock(device: str) -> Clock:
    """Returns the clock of a device."""
    return WallClock() if device == "cpu" else CudaClock(device)


class Timed(NamedTuple):
    """Seconds of some work on the device, and whether the device never waited for a launch.

    ``attempts`` counts how often the work was done; the last time counts.
    """

    seconds: float
    queued: bool
    attempts: int


def time_queued(clock: Clock, work: Callable[[], object], host_seconds: float) -> Timed:
    """Times work that takes the host about ``host_seconds`` to launch, as if all were queued.

    An idle kernel occupies the device until everything is launched. A launch queue holds about
    1,000 entries.
    """
    held = 2 * host_seconds + 1e-3
    for attempt in range(1, ATTEMPTS + 1):
        clock.synchronize()
        is_held = clock.hold(held * 2**attempt)
        begin = clock.mark()
        work()
        end = clock.mark()
        queued = is_held()
        clock.synchronize()
        if queued:
            break
    return Timed(clock.seconds(begin, end), queued, attempt)


class Launch(NamedTuple):
    """One launch of a kernel: its name, the bytes of tensors given to it, and marks around it.

    It keeps no tensors, since the next launch could not reuse their memory.
    """

    kernel: str
    sizes: dict[str, int]
    begin: Any
    end: Any


@contextmanager
def marked_launches(clock: Clock, kernel: Any) -> Iterator[list[Launch]]:  # noqa: ANN401  # Triton's
    """Marks every launch of Triton kernels of ``kernel``'s class, compiled or interpreted.

    Each mark is one more entry of the launch queue, and some hundred nanoseconds of the device.
    """
    launches: list[Launch] = []
    made = type(kernel)
    run = made.run

    def marked(launched: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> Any:  # noqa: ANN401
        begin = clock.mark()
        answer = run(launched, *args, grid=grid, warmup=warmup, **named)
        end = clock.mark()
        given = zip(launched.arg_names, args, strict=False)
        sizes = {name: each.nbytes for name, each in given if isinstance(each, torch.Tensor)}
        launches.append(Launch(launched.__name__, sizes, begin, end))
        return answer

    made.run = marked
    try:
        yield launches
    finally:
        made.run = run
