"""Calls of the CUDA driver by ctypes, during which other Python threads run.

cupy and torch return a UUID as a C string, which ends at its first zero byte. One device in
sixteen has such a byte. cupy holds the GIL while it creates a context, for 0.3 to 2 s. Neither can
set a thread's capture mode.
"""

import ctypes
from typing import Any

from kvstore_client.errors import DeviceUnavailable

LIBRARY = "libcuda.so.1"
UUID_BYTES = 16
# CU_STREAM_CAPTURE_MODE_RELAXED, of the enum CUstreamCaptureMode.
CAPTURE_RELAXED = 2
# CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM of cuda.h.
HOST_ADDRESSES = 91
# CU_MEMHOSTREGISTER_PORTABLE of cuda.h: registered for every context, as by CUDA's runtime.
REGISTER_PORTABLE = 1


class CudaDriver:
    """The driver, initialised. ``library`` has its functions.

    It and every method raise :class:`DeviceUnavailable`.
    """

    def __init__(self, library: Any = None) -> None:  # noqa: ANN401  # functions by name
        self._library = library or _load()
        self._call("cuInit", ctypes.c_uint(0))

    def uuid(self, device: int) -> bytes:
        """Returns the 16 bytes of a device's UUID; of a MIG instance, its own."""
        ordinal = ctypes.c_int()
        uuid = (ctypes.c_ubyte * UUID_BYTES)()
        self._call("cuDeviceGet", ctypes.byref(ordinal), ctypes.c_int(device))
        self._call("cuDeviceGetUuid_v2", ctypes.byref(uuid), ordinal)
        return bytes(uuid)

    def create_context(self, device: int) -> None:
        """Creates a device's primary context if none exists, and keeps it until the process ends.

        cupy, torch and every user of CUDA's runtime work in this one context.
        """
        self._primary_context(device)

    def use(self, device: int) -> None:
        """Makes a device's primary context current on the calling thread, and keeps it."""
        self._call("cuCtxSetCurrent", self._primary_context(device))

    def uses_host_addresses(self, device: int) -> bool:
        """Returns whether the device uses the host's addresses of registered memory.

        If it has other addresses (WSL 2), a batched copy ends in an illegal address, and CUDA
        refuses every later call of the process (sgl-project/sglang issue 40232).
        """
        ordinal, value = ctypes.c_int(), ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(ordinal), ctypes.c_int(device))
        self._call(
            "cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(HOST_ADDRESSES), ordinal
        )
        return bool(value.value)

    def register(self, address: int, size_bytes: int) -> None:
        """Pins mapped host memory for all devices; 0.1 s a GB. Call it after :meth:`use`.

        A refusal leaves no error behind: the driver has none that a later call would report, unlike
        CUDA's runtime, whose ``cudaHostRegister`` this is.
        """
        self._call(
            "cuMemHostRegister_v2",
            ctypes.c_void_p(address),
            ctypes.c_size_t(size_bytes),
            ctypes.c_uint(REGISTER_PORTABLE),
        )

    def unregister(self, address: int) -> None:
        """Undoes a registration. Call it after :meth:`use`, before the memory is unmapped."""
        self._call("cuMemHostUnregister", ctypes.c_void_p(address))

    def relax_capture(self) -> None:
        """Allows the calling thread to use CUDA while another thread captures a graph.

        In the default mode a call such as ``cudaIpcOpenMemHandle`` fails then with error 900, and
        ends the capture too. A wait for the whole device fails in any mode.
        """
        mode = ctypes.c_int(CAPTURE_RELAXED)
        self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))

    def _primary_context(self, device: int) -> ctypes.c_void_p:
        ordinal, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(ordinal), ctypes.c_int(device))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
        return context

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            raise DeviceUnavailable(f"CUDA cannot be used: {name}: CUresult {result}")


def _load() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise DeviceUnavailable(f"there is no NVIDIA driver here: {error}") from error
