"""The CUDA calls that the server needs, by cupy."""

import ctypes
from collections.abc import Sequence as Items
from typing import Any, NamedTuple

from kvstore.storage.cuda.cuda_driver import CudaDriver, PlainCopy
from kvstore.storage.errors import CudaFailed, DeviceUnavailable
from kvstore.storage.slot_copies import DeviceCopy

# cudaMemcpyHostToDevice and cudaMemcpyDeviceToHost, of the runtime's enum cudaMemcpyKind.
HOST_TO_DEVICE = 1
DEVICE_TO_HOST = 2
# cudaStreamNonBlocking: no order between this stream and the legacy default one.
STREAM_NON_BLOCKING = 1
# cudaEventBlockingSync and cudaEventDisableTiming: a waiting thread sleeps; the event has no time.
EVENT_FLAGS = 1 | 2
# cudaHostRegisterPortable: pinned to all contexts, whichever thread's.
HOST_REGISTER_PORTABLE = 1
HOW_TO_INSTALL = "install it with: pip install cupy-cuda13x, or cupy-cuda12x for CUDA 12"


class Exported(NamedTuple):
    """An IPC handle (64 bytes), and how far into what it reaches the memory begins."""

    ipc_handle: bytes
    offset: int


class DeviceMemoryInfo(NamedTuple):
    """Bytes that a device has left, for all processes together, and has in all."""

    available_bytes: int
    total_bytes: int


class CupyRuntime:
    """CUDA's runtime through cupy. Raises :class:`DeviceUnavailable` if it is missing.

    Methods are for threads that selected the device, and raise CudaFailed.

    Memory is plain ``cudaMalloc``. Memory from a pool of cupy or torch cannot be exported, or
    exports the pool's whole segment.
    """

    def __init__(self) -> None:
        try:
            import cupy  # noqa: PLC0415  # on demand: a server of host memory has none
        except ImportError as error:
            raise DeviceUnavailable(f"cupy cannot be loaded ({error}): {HOW_TO_INSTALL}") from error
        self._runtime: Any = cupy.cuda.runtime
        self._driver = CudaDriver()
        self._batches = False

    def select(self, device: int) -> bytes:
        """Creates a device's context, makes it current, and returns its UUID.

        Raises :class:`DeviceUnavailable`.
        """
        try:
            count = self._call("getDeviceCount")
            if device >= count:
                raise DeviceUnavailable(f"there is no cuda:{device}: {count} devices are visible")
            # cupy's setDevice holds the GIL, so it must not be the call that creates the context.
            self._driver.retain(device)
            self.use(device)
            self._batches = self._driver.copies_batches(device)
            return self._driver.uuid(device)
        except CudaFailed as error:
            raise DeviceUnavailable(f"cuda:{device} cannot be used: {error}") from error

    def use(self, device: int) -> None:
        """Makes a prepared device current on this thread, by ``cudaSetDevice``."""
        self._call("setDevice", device)

    def pci_bus_id(self, device: int) -> str:
        """Returns where a device is attached, such as ``0000:3B:00.0``."""
        return self._driver.pci_bus_id(device)

    def room(self) -> DeviceMemoryInfo:
        """Returns the memory that the device has left and in all."""
        return DeviceMemoryInfo(*self._call("memGetInfo"))

    def allocate(self, size_bytes: int) -> int:
        """Returns the address of fresh memory with undefined content."""
        address: int = self._call("malloc", size_bytes)
        return address

    def fill(self, address: int, size_bytes: int, value: int, stream: int) -> None:
        """Writes one value into all bytes of memory, and waits for the stream."""
        self._call("memsetAsync", address, value, size_bytes, stream)
        self.wait(stream)

    def read(self, address: int, size_bytes: int, stream: int) -> memoryview:
        """Returns a copy of memory's bytes, after waiting for the stream.

        It includes writes of other streams only if the caller waited for them first.
        """
        copy = memoryview((ctypes.c_ubyte * size_bytes)()).cast("B")
        try:
            self.begin_read(address, copy, stream)
        finally:
            # Otherwise a copy that has begun would write to freed memory.
            self.wait(stream)
        return copy

    def make_stream(self) -> int:
        """Returns a stream that waits for no other, of ``cudaStreamCreateWithFlags``."""
        stream: int = self._call("streamCreateWithFlags", STREAM_NON_BLOCKING)
        return stream

    def begin_write(self, address: int, content: memoryview, stream: int) -> None:
        """Begins a ``cudaMemcpyAsync``, which the driver may stage in its own memory.

        ``content`` must not change until the wait.
        """
        kind = HOST_TO_DEVICE
        self._call("memcpyAsync", address, address_of(content), content.nbytes, kind, stream)

    def begin_read(self, address: int, into: memoryview, stream: int) -> None:
        """Begins a ``cudaMemcpyAsync``. ``into`` must stay alive until the wait."""
        kind = DEVICE_TO_HOST
        self._call("memcpyAsync", address_of(into), address, into.nbytes, kind, stream)

    def begin_batch(self, copies: Items[DeviceCopy], stream: int) -> bool:
        """Begins all copies by ``cuMemcpyBatchAsync``, in any order. Returns False without it.

        If it raises, some or all of them may have begun.
        """
        if not self._batches:
            return False
        plain = []
        for address, content, inwards in copies:
            host = address_of(content)
            ends = (address, host) if inwards else (host, address)
            plain.append(PlainCopy(*ends, content.nbytes))
        self._driver.begin_batch(plain, stream)
        return True

    def wait(self, stream: int) -> None:
        """Waits by ``cudaStreamSynchronize``, which also raises errors of earlier work."""
        self._call("streamSynchronize", stream)

    def record_event(self, stream: int) -> int:
        """Returns an event of ``cudaEventRecord``, which ``wait_for_event`` destroys.

        It happens once all work queued on the stream so far is done.
        """
        event: int = self._call("eventCreateWithFlags", EVENT_FLAGS)
        try:
            self._call("eventRecord", event, stream)
        except CudaFailed:
            self._call("eventDestroy", event)
            raise
        return event

    def wait_for_event(self, event: int) -> None:
        """Waits by ``cudaEventSynchronize``, asleep; also raises errors of earlier work."""
        try:
            self._call("eventSynchronize", event)
        finally:
            self._call("eventDestroy", event)

    def synchronize(self) -> None:
        """Waits by ``cudaDeviceSynchronize``. Raises each time after an error that stays."""
        self._call("deviceSynchronize")

    def register(self, address: int, size_bytes: int) -> None:
        """Pins host memory for the device by ``cudaHostRegister``, portable; 0.1 s a GB.

        After a refusal cupy clears the error by ``cudaGetLastError``, so no later call reports it
        again.
        """
        self._call("hostRegister", address, size_bytes, HOST_REGISTER_PORTABLE)

    def unregister(self, address: int) -> None:
        """Unregisters by ``cudaHostUnregister``."""
        self._call("hostUnregister", address)

    def export(self, address: int) -> Exported:
        """Returns the export with which other processes map the memory."""
        base = self._driver.allocation(address).base
        # CUDA documents this call for an allocation's first byte only.
        handle: bytes = self._call("ipcGetMemHandle", base)
        return Exported(handle, address - base)

    def give_back(self, address: int) -> None:
        """Frees memory that no other process maps."""
        self._call("free", address)

    def _call(self, name: str, *arguments: int) -> Any:  # noqa: ANN401  # as CUDA's
        try:
            return getattr(self._runtime, name)(*arguments)
        except self._runtime.CUDARuntimeError as error:
            raise CudaFailed(f"{name}: {error}") from error


def address_of(content: memoryview) -> int:
    """Returns the address of bytes of this process, valid while the view is alive."""
    if content.readonly:
        # As for copies of slots.
        import numpy as np  # noqa: PLC0415

        return np.frombuffer(content, np.uint8).ctypes.data
    # Takes a tenth of the time of the other way.
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(content))
