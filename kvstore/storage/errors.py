"""Why memory cannot be had. The service turns these into the wire's errors."""


class SlabUnusable(Exception):
    """The file cannot be a slab, or not on this disk; the message says what to do about it."""


class SlabInUse(SlabUnusable):
    """Another process has the file."""


class DeviceUnavailable(Exception):
    """Memory of this kind cannot be had at all; the message says what to do about it."""


class CudaFailed(Exception):
    """CUDA refused a call, which the message names."""


class SlotGone(Exception):
    """The extent of a slot is there no more."""


class StorageError(Exception):
    """An allocation was refused, and nothing was allocated.

    ``requested_bytes`` were asked for where ``available_bytes`` can be had.
    """

    def __init__(self, message: str, *, requested_bytes: int, available_bytes: int) -> None:
        self.requested_bytes = requested_bytes
        self.available_bytes = available_bytes
        super().__init__(f"{message}: {requested_bytes} bytes wanted, {available_bytes} available")


class NotEnoughMemory(StorageError):
    """The machine, its device, or a limit of the process's cgroups, has not that much memory."""


class BudgetExhausted(StorageError):
    """The tier's budget has not that many bytes left."""
