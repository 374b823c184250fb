"""What only the CUDA driver tells: a device's UUID, and where an allocation begins.

cupy hands a UUID out as a C string, which ends at its first zero byte: one device
in sixteen has such a byte.
"""

import ctypes
from typing import Any, NamedTuple

from kvstore.storage.errors import CudaFailed, DeviceUnavailable

LIBRARY = "libcuda.so.1"
UUID_BYTES = 16
# CUDA asks for 13 at least; the domain may have more digits than four.
PCI_BUS_ID_BYTES = 32


class Allocation(NamedTuple):
    """Where an allocation begins, and how many bytes it has."""

    base: int
    size_bytes: int


class CudaDriver:
    """The driver, initialised. Raises :class:`DeviceUnavailable` where there is none.

    ``library`` has its functions. Every method raises :class:`CudaFailed`.
    """

    def __init__(self, library: Any = None) -> None:  # noqa: ANN401  # functions by name
        self._library = library or _load()
        try:
            self._call("cuInit", ctypes.c_uint(0))
        except CudaFailed as error:
            raise DeviceUnavailable(f"CUDA cannot be used: {error}") from error

    def uuid(self, device: int) -> bytes:
        """Return the 16 bytes of a device's UUID; of a MIG instance, its own."""
        ordinal = ctypes.c_int()
        uuid = (ctypes.c_ubyte * UUID_BYTES)()
        self._call("cuDeviceGet", ctypes.byref(ordinal), ctypes.c_int(device))
        self._call("cuDeviceGetUuid_v2", ctypes.byref(uuid), ordinal)
        return bytes(uuid)

    def pci_bus_id(self, device: int) -> str:
        """Return a device's place, such as ``0000:3B:00.0``; of a MIG instance, that of its GPU."""
        name, ordinal = ctypes.create_string_buffer(PCI_BUS_ID_BYTES), ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(ordinal), ctypes.c_int(device))
        self._call("cuDeviceGetPCIBusId", name, ctypes.c_int(PCI_BUS_ID_BYTES), ordinal)
        return name.value.decode("ascii")

    def allocation(self, address: int) -> Allocation:
        """Return the allocation that an address lies in; on the thread that made it."""
        base, size = ctypes.c_ulonglong(), ctypes.c_size_t()
        self._call(
            "cuMemGetAddressRange_v2",
            ctypes.byref(base),
            ctypes.byref(size),
            ctypes.c_ulonglong(address),
        )
        return Allocation(base.value, size.value)

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            raise CudaFailed(f"{name}: CUresult {result}")


def _load() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise DeviceUnavailable(f"there is no NVIDIA driver here: {error}") from error
