"""What only the CUDA driver tells: a device's UUID.

cupy and torch hand it out as a C string, which ends at its first zero byte: one
device in sixteen has such a byte.
"""

import ctypes
from typing import Any

from kvstore_client.errors import DeviceUnavailable

LIBRARY = "libcuda.so.1"
UUID_BYTES = 16


class CudaDriver:
    """The driver, initialised. ``library`` has its functions.

    It and every method raise :class:`DeviceUnavailable`.
    """

    def __init__(self, library: Any = None) -> None:  # noqa: ANN401  # functions by name
        self._library = library or _load()
        self._call("cuInit", ctypes.c_uint(0))

    def uuid(self, device: int) -> bytes:
        """Return the 16 bytes of a device's UUID; of a MIG instance, its own."""
        ordinal = ctypes.c_int()
        uuid = (ctypes.c_ubyte * UUID_BYTES)()
        self._call("cuDeviceGet", ctypes.byref(ordinal), ctypes.c_int(device))
        self._call("cuDeviceGetUuid_v2", ctypes.byref(uuid), ordinal)
        return bytes(uuid)

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            raise DeviceUnavailable(f"CUDA cannot be used: {name}: CUresult {result}")


def _load() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise DeviceUnavailable(f"there is no NVIDIA driver here: {error}") from error
