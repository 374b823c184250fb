"""Errors of storage. The service turns these into the wire's errors."""


class SlabUnusable(Exception):
    """The file or its disk is unsuitable for a slab; the message says what to do about it."""


class SlabInUse(SlabUnusable):
    """Another process has the file open."""


class DeviceUnavailable(Exception):
    """The machine cannot provide this kind of memory; the message says what to do about it."""


class CudaFailed(Exception):
    """CUDA refused a call, which the message names."""


class RemovalUnsettled(Exception):
    """A page store may have removed pages again after a restart."""


class SlotGone(Exception):
    """The extent of a slot no longer exists."""


class ExtentUnusable(Exception):
    """Inherited memory is not what was written about it; the message says how it differs."""


class StorageError(Exception):
    """An allocation was refused, and nothing was allocated.

    The call requested ``requested_bytes``, and ``available_bytes`` are available.
    """

    def __init__(self, message: str, *, requested_bytes: int, available_bytes: int) -> None:
        self.requested_bytes = requested_bytes
        self.available_bytes = available_bytes
        super().__init__(f"{message}: {requested_bytes} bytes wanted, {available_bytes} available")


class NotEnoughMemory(StorageError):
    """The machine, its device or a cgroup of the process has less memory than requested."""


class BudgetExhausted(StorageError):
    """The tier's budget has fewer bytes left than requested."""
