"""The calls of CUDA that the client needs, by cupy and torch."""

from typing import TYPE_CHECKING, Any
from uuid import UUID

from kvstore_client.errors import DeviceUnavailable
from kvstore_client.memory.cuda.cuda_driver import CudaDriver

if TYPE_CHECKING:
    import torch

HOW_TO_INSTALL = "install it with: pip install cupy-cuda13x, or cupy-cuda12x for CUDA 12"
# cudaErrorDeviceUninitialized, "invalid device context".
INVALID_CONTEXT = 201
# CUDA refuses a handle from a process with the caller's own id. The first processes of two
# containers have the same id, and handles do not cross process namespaces (UCX, pull request
# 11514).
OTHER_NAMESPACE = (
    "the store and this process have to share a process namespace and an IPC namespace: run both "
    "containers with `pid: host` and a shared `ipc`, or in one pod with shareProcessNamespace"
)


class CupyRuntime:
    """CUDA's runtime through cupy, with memory as torch's tensors.

    Raises :class:`DeviceUnavailable` if one of the two is missing, or if torch was built
    without CUDA. So do all methods but ``synchronize``. Both use the one context that a process
    has on a device.
    """

    def __init__(self) -> None:
        try:
            import torch  # noqa: PLC0415  # on demand: clients of host memory may have neither
            from torch.utils import dlpack  # noqa: PLC0415  # as torch
        except ImportError as error:
            raise DeviceUnavailable(f"torch cannot be loaded: {error}") from error
        try:
            import cupy  # noqa: PLC0415  # as torch
        except ImportError as error:
            raise DeviceUnavailable(f"cupy cannot be loaded ({error}): {HOW_TO_INSTALL}") from error
        if torch.version.cuda is None:
            raise DeviceUnavailable(f"torch {torch.__version__} was built without CUDA")
        self._from_dlpack = dlpack.from_dlpack
        self._cupy: Any = cupy
        self._runtime: Any = cupy.cuda.runtime
        self._driver = CudaDriver()

    def device_of(self, uuid: bytes) -> int:
        """Returns a device's number in this process, which may differ in other processes."""
        seen = [self._driver.uuid(device) for device in range(self._call("getDeviceCount"))]
        if uuid in seen:
            return seen.index(uuid)
        names = ", ".join(str(UUID(bytes=each)) for each in seen) or "none"
        raise DeviceUnavailable(
            f"the store's pages are on device {UUID(bytes=uuid)}, and this process sees {names}: "
            "look at CUDA_VISIBLE_DEVICES"
        )

    def relax_capture(self) -> None:
        """Allows the calling thread to call CUDA while another thread captures a graph."""
        self._driver.relax_capture()

    def open(self, device: int, ipc_handle: bytes) -> int:
        """Maps another process's memory, and returns its address.

        Creates the context first, in a call that lets other Python threads run.
        """
        self._driver.create_context(device)
        self._call("setDevice", device)
        address: int = self._call("ipcOpenMemHandle", ipc_handle)
        return address

    def tensor(self, device: int, address: int, size_bytes: int, owner: object) -> "torch.Tensor":
        """Returns memory as a row of uint8, whose views keep ``owner`` alive."""
        cupy = self._cupy
        with cupy.cuda.Device(device):
            memory = cupy.cuda.UnownedMemory(address, size_bytes, owner, device)
            pointer = cupy.cuda.MemoryPointer(memory, 0)
            array = cupy.ndarray((size_bytes,), cupy.uint8, pointer)
            return self._from_dlpack(array)

    def close(self, device: int, address: int) -> None:
        """Unmaps memory that this process's work no longer uses."""
        self._call("setDevice", device)
        self._call("ipcCloseMemHandle", address)

    def synchronize(self, device: int) -> None:
        """Waits until the device has no work of this process left. Any thread may call it.

        Raises CUDARuntimeError if such work failed.
        """
        self._cupy.cuda.Device(device).synchronize()

    def _call(self, name: str, *arguments: int | bytes) -> Any:  # noqa: ANN401  # as CUDA's
        try:
            return getattr(self._runtime, name)(*arguments)
        except self._runtime.CUDARuntimeError as error:
            advice = f": {OTHER_NAMESPACE}" if error.status == INVALID_CONTEXT else ""
            raise DeviceUnavailable(f"CUDA refused {name}: {error}{advice}") from error
