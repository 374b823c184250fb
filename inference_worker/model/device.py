"""The device of a model: its name, its threads, its queued work, and its loss."""

import os

import torch

from inference_worker.errors import DeviceLostError
from inference_worker.model.names import CPU, TINY, DtypeName


def find_device(name: str) -> torch.device:
    """Returns ``cpu`` or a CUDA device (``cuda``, ``cuda:N`` as this process counts them).

    Raises ``ValueError`` with the reason if there is no such device.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"{name!r} is not a device: use cpu or cuda:N") from error
    if device.type == CPU:
        return device
    if device.type != "cuda":
        raise ValueError(f"{name!r} is not supported: use cpu or cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    number = device.index or 0
    if number >= count:
        built = torch.version.cuda or "no CUDA"
        raise ValueError(f"{name!r} is missing: torch, built with {built}, sees {count} devices")
    return torch.device("cuda", number)


def weights_dtype(device: torch.device, name: DtypeName | None = None) -> torch.dtype:
    """Returns the dtype of weights, keys and values: float32 on a CPU, else bfloat16."""
    if name is not None:
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    return torch.float32 if device.type == CPU else torch.bfloat16


def threads_for(model: str, count: int | None) -> int | None:
    """Returns how many threads a model computes with: ``count`` if given, one for a tiny model.

    Threads of a small model wait for each other longer than they compute. With two threads each on
    two busy cores, tests of tiny models took 134 s instead of 10 s.
    """
    return 1 if count is None and model.startswith(TINY) else count


def use_threads(count: int | None = None) -> int:
    """Sets torch's threads to ``count``, by default one for each core of this process.

    Changes the whole process; a program's main function calls it once. Returns the number of
    threads.
    """
    chosen = count or len(os.sched_getaffinity(0))
    torch.set_num_threads(chosen)
    return chosen


class DeviceWork:
    """The work that an engine queued on its device, to wait for.

    A GPU computes asynchronously. An insert may only follow the writes of its pages, and a release
    the last read, so the client waits here before each of them:
    ``ClientConfig(wait_for_device=DeviceWork(model.device).wait)``. An object waits for the stream
    that is current where it is made: make it on the thread that computes. Any thread may wait.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        """Stores the device's current stream; a CPU has none, its work is always done."""
        self._device = where = torch.device(device)
        self._stream = torch.cuda.current_stream(where) if where.type == "cuda" else None

    def wait(self) -> None:
        """Returns once all work queued so far is done; does not wait for later work.

        Kernels launched later, in any process, then see what was written. Raises the device's error
        for work that failed: then nothing that it touched may be published or released.
        """
        if self._stream is None:
            return
        done = torch.cuda.Event()
        done.record(self._stream)
        done.synchronize()

    def answers(self) -> bool:
        """Waits for all work on the device; returns False if the device fails again."""
        try:
            if self._stream is not None:
                torch.cuda.synchronize(self._device)
        except RuntimeError:
            return False
        return True

    def check(self, error: Exception) -> None:
        """Raises ``DeviceLostError`` if ``error`` came from a device that has failed for good.

        Torch, Triton and cupy raise a ``RuntimeError`` if CUDA refuses a call. Only another call
        shows whether the error stays (CUDA calls such errors sticky), so this asks the device once.
        An error about memory is never such an error.
        """
        if isinstance(error, torch.OutOfMemoryError) or not isinstance(error, RuntimeError):
            return
        if not self.answers():
            raise DeviceLostError(f"{self._device} fails for good: {error}") from error
