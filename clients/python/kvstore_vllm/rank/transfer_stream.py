"""The order of copies: on a device in a stream of their own, on a CPU at once."""

import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import torch

MICROSECONDS: Final = 1e6
MICROSECONDS_OF_A_MILLISECOND: Final = 1e3


class Timed(NamedTuple):
    """Copied bytes, and the time that copying them took."""

    byte_count: int
    microseconds: int


class TransferStream(Protocol):
    """Runs copies after earlier work of the step's stream."""

    def mark(self) -> torch.cuda.Event | None:
        """Returns the end of the work that is queued on the caller's stream; None: it is done."""

    def run(self, ready: torch.cuda.Event | None, copy: Callable[[], int]) -> Timed:
        """Copies after ``ready``, and waits until the copies are complete, also if one failed.

        ``copy`` begins the copies and returns their bytes. Raises its errors and the device's.
        """


class HostStream:
    """Copies of a CPU, which are complete when the code that makes them returns."""

    def mark(self) -> None:
        """Returns None: earlier work is done."""

    def run(self, ready: torch.cuda.Event | None, copy: Callable[[], int]) -> Timed:
        """Copies on the calling thread."""
        del ready
        begin = time.monotonic()
        byte_count = copy()
        return Timed(byte_count, round((time.monotonic() - begin) * MICROSECONDS))


class DeviceStream:
    """A stream of a device for the copies of one direction, of the lowest priority.

    PCIe carries both directions at once. The step's kernels come before the copies' where they
    compete. Any thread may use it; one thread at a time runs copies.
    """

    def __init__(self, device: torch.device) -> None:
        lowest, _ = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]  # it is static
        self._device = device
        self._stream = torch.cuda.Stream(device, priority=lowest)

    def mark(self) -> torch.cuda.Event:
        """Returns an event after the work on the caller's current stream. Does not wait."""
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(self._device))
        return ready

    def run(self, ready: torch.cuda.Event | None, copy: Callable[[], int]) -> Timed:
        """Begins the copies with this stream as the current one, and sleeps until they end."""
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True, blocking=True)
        with torch.cuda.stream(self._stream):
            if ready is not None:
                self._stream.wait_event(ready)
            begin.record(self._stream)
            try:
                byte_count = copy()
            finally:
                # Copies begun before a failed one still use memory that is released next.
                end.record(self._stream)
                end.synchronize()
        elapsed = begin.elapsed_time(end) * MICROSECONDS_OF_A_MILLISECOND
        return Timed(byte_count, round(elapsed))
