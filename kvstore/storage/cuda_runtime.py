"""What the server asks of CUDA, and cupy, which does it."""

import ctypes
from typing import Any, NamedTuple, Protocol

import numpy as np

from kvstore.storage.cuda_driver import CudaDriver
from kvstore.storage.errors import CudaFailed, DeviceUnavailable

# cudaMemcpyHostToDevice and cudaMemcpyDeviceToHost, of the runtime's enum cudaMemcpyKind.
HOST_TO_DEVICE = 1
DEVICE_TO_HOST = 2
HOW_TO_INSTALL = "install it with: pip install cupy-cuda13x, or cupy-cuda12x for CUDA 12"


class Exported(NamedTuple):
    """An IPC handle (64 bytes), and how far into what it reaches the memory begins."""

    ipc_handle: bytes
    offset: int


class DeviceRoom(NamedTuple):
    """Bytes that a device has left, for all processes together, and has in all."""

    available_bytes: int
    total_bytes: int


class CudaRuntime(Protocol):
    """Calls on one device, from the one thread that selected it. Each raises CudaFailed."""

    def select(self, device: int) -> bytes:
        """Make a device this thread's own, and return its UUID; raises DeviceUnavailable."""
        ...

    def room(self) -> DeviceRoom:
        """Return what the device has left."""
        ...

    def allocate(self, size_bytes: int) -> int:
        """Return the address of fresh memory, whatever is in it."""
        ...

    def fill(self, address: int, size_bytes: int, value: int) -> None:
        """Write one value into all bytes of memory, and wait until it is done."""
        ...

    def read(self, address: int, size_bytes: int) -> memoryview:
        """Return a copy of memory's bytes, made in the device's order of its work."""
        ...

    def write(self, address: int, content: memoryview) -> None:
        """Write bytes into memory, and wait until they are there."""
        ...

    def export(self, address: int) -> Exported:
        """Return what lets other processes map the memory."""
        ...

    def give_back(self, address: int) -> None:
        """Give memory back that no other process maps."""
        ...


class CupyRuntime:
    """CUDA's runtime by way of cupy. Raises :class:`DeviceUnavailable` where it is missing.

    Memory is plain ``cudaMalloc``: what comes from a pool, cupy's or torch's, cannot
    be exported, or exports the pool's whole segment.
    """

    def __init__(self) -> None:
        try:
            import cupy  # noqa: PLC0415  # on demand: a server of host memory has none
        except ImportError as error:
            raise DeviceUnavailable(f"cupy cannot be loaded ({error}): {HOW_TO_INSTALL}") from error
        self._runtime: Any = cupy.cuda.runtime
        self._driver = CudaDriver()

    def select(self, device: int) -> bytes:
        """Make a device this thread's own, and return its UUID; raises DeviceUnavailable."""
        try:
            count = self._call("getDeviceCount")
            if device >= count:
                raise DeviceUnavailable(f"there is no cuda:{device}: {count} devices are visible")
            self._call("setDevice", device)
            # Makes the context, which the driver's own calls need.
            self._call("deviceSynchronize")
            return self._driver.uuid(device)
        except CudaFailed as error:
            raise DeviceUnavailable(f"cuda:{device} cannot be used: {error}") from error

    def room(self) -> DeviceRoom:
        """Return what the device has left."""
        return DeviceRoom(*self._call("memGetInfo"))

    def allocate(self, size_bytes: int) -> int:
        """Return the address of fresh memory, whatever is in it."""
        address: int = self._call("malloc", size_bytes)
        return address

    def fill(self, address: int, size_bytes: int, value: int) -> None:
        """Write one value into all bytes of memory, and wait until it is done."""
        self._call("memset", address, value, size_bytes)
        self._call("deviceSynchronize")

    def read(self, address: int, size_bytes: int) -> memoryview:
        """Return a copy of memory's bytes: the call returns when the copy is there."""
        copy = (ctypes.c_ubyte * size_bytes)()
        self._call("memcpy", ctypes.addressof(copy), address, size_bytes, DEVICE_TO_HOST)
        return memoryview(copy).cast("B")

    def write(self, address: int, content: memoryview) -> None:
        """Write bytes into memory: those of a host's page, whose memory is not pinned."""
        source = np.frombuffer(content, np.uint8)
        self._call("memcpy", address, source.ctypes.data, source.nbytes, HOST_TO_DEVICE)
        self._call("deviceSynchronize")

    def export(self, address: int) -> Exported:
        """Return what lets other processes map the memory."""
        handle: bytes = self._call("ipcGetMemHandle", address)
        return Exported(handle, address - self._driver.allocation(address).base)

    def give_back(self, address: int) -> None:
        """Give memory back that no other process maps."""
        self._call("free", address)

    def _call(self, name: str, *arguments: int) -> Any:  # noqa: ANN401  # as CUDA's
        try:
            return getattr(self._runtime, name)(*arguments)
        except self._runtime.CUDARuntimeError as error:
            raise CudaFailed(f"{name}: {error}") from error
