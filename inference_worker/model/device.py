"""The device, the dtype and the threads that a model computes with."""

import os

import torch

from inference_worker.errors import DeviceLostError
from inference_worker.model.names import CPU, TINY, DtypeName


def find_device(name: str) -> torch.device:
    """Returns ``cpu`` or a CUDA device (``cuda``, ``cuda:N`` as this process counts them).

    Raises ``ValueError`` with the reason where there is none of that name.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"{name!r} is no device: cpu, cuda:0") from error
    if device.type == CPU:
        return device
    if device.type != "cuda":
        raise ValueError(f"{name!r} is no device that a model is served on: cpu, cuda:0")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    number = device.index or 0
    if number >= count:
        built = torch.version.cuda or "no CUDA"
        raise ValueError(f"{name!r} is not there: torch, built with {built}, sees {count} devices")
    return torch.device("cuda", number)


def weights_dtype(device: torch.device, name: DtypeName | None = None) -> torch.dtype:
    """Returns what weights, keys and values are kept in: float32 on a CPU, else bfloat16."""
    if name is not None:
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    return torch.float32 if device.type == CPU else torch.bfloat16


def threads_for(model: str, count: int | None) -> int | None:
    """Says how many threads a model computes with: ``count`` if given, one for a tiny model.

    Threads that wait for each other cost a small model more than they compute: 134 s instead of
    10 s for the tests of tiny models, with two threads each on two busy cores.
    """
    return 1 if count is None and model.startswith(TINY) else count


def use_threads(count: int | None = None) -> int:
    """Sets torch's threads to ``count``, else one for each core this process may run on.

    Changes the whole process; called once by a program's main.
    Returns the number set.
    """
    chosen = count or len(os.sched_getaffinity(0))
    torch.set_num_threads(chosen)
    return chosen


class DeviceWork:
    """The work that an engine queued on its device, to be waited for.

    A GPU computes behind the back of the thread that asked for it. An insert may only follow its
    writes, and a release the last read, so the client waits here before each of them:
    ``ClientConfig(wait_for_device=DeviceWork(model.device).wait)``.
    Speaks of the stream that is current where it is made: make it on the thread that computes.
    Any thread may wait.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        """Notes the device's current stream; a CPU has none, its work is done when it returns."""
        self._device = where = torch.device(device)
        self._stream = torch.cuda.current_stream(where) if where.type == "cuda" else None

    def wait(self) -> None:
        """Returns once all that was queued until now is done; later work is not waited for.

        Afterwards kernels launched later, in any process, see what was written. Raises what the
        device raises for work that failed: then nothing it touched may be told or given back.
        """
        if self._stream is None:
            return
        done = torch.cuda.Event()
        done.record(self._stream)
        done.synchronize()

    def answers(self) -> bool:
        """Waits for all work on the device; returns False if the device fails once more."""
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
