"""What a device still has to do on the pages before the store may be told of it."""

import torch

from inference_worker.errors import DeviceLostError


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
