"""Calls of the CUDA driver that cupy does not wrap, or wraps while it holds Python's GIL.

cupy returns a device's UUID as a C string, which ends at its first zero byte: one device in sixteen
has such a byte. ctypes releases the GIL during each call.
"""

import ctypes
from collections.abc import Sequence as Items
from typing import Any, NamedTuple

from kvstore.storage.errors import CudaFailed, DeviceUnavailable

LIBRARY = "libcuda.so.1"
UUID_BYTES = 16
# CU_MEMCPY_SRC_ACCESS_ORDER_STREAM of cuda.h: a source is read in the stream's order.
SOURCE_IN_STREAM_ORDER = 1
# The batched copies of CUDA 13 and of CUDA 12.8; the latter has one more argument, failIdx. cuda.h
# of CUDA 13 calls the first by the second's name; the driver's symbols differ.
BATCHED = "cuMemcpyBatchAsync_v2"
BATCHED_12_8 = "cuMemcpyBatchAsync"
# CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM of cuda.h.
HOST_ADDRESSES = 91
# CUDA asks for 13 at least; the domain may have more digits than four.
PCI_BUS_ID_BYTES = 32


class Allocation(NamedTuple):
    """The address of an allocation, and its size in bytes."""

    base: int
    size_bytes: int


class PlainCopy(NamedTuple):
    """``size_bytes`` to copy from one address to another."""

    target: int
    source: int
    size_bytes: int


class Location(ctypes.Structure):
    """CUmemLocation of cuda.h. Ignored for memory of ``cudaMalloc`` and registered memory."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class CopyAttributes(ctypes.Structure):
    """CUmemcpyAttributes of cuda.h, the same 24 bytes in CUDA 12.8 and in CUDA 13."""

    _fields_ = (
        ("srcAccessOrder", ctypes.c_int),
        ("srcLocHint", Location),
        ("dstLocHint", Location),
        ("flags", ctypes.c_uint),
    )


class CudaDriver:
    """The driver, initialised. Raises :class:`DeviceUnavailable` where there is none.

    ``library`` has its functions. Every method but ``copies_batches`` raises :class:`CudaFailed`.
    """

    def __init__(self, library: Any = None) -> None:  # noqa: ANN401  # functions by name
        self._library = library or _load()
        try:
            self._call("cuInit", ctypes.c_uint(0))
        except CudaFailed as error:
            raise DeviceUnavailable(f"CUDA cannot be used: {error}") from error

    def uuid(self, device: int) -> bytes:
        """Returns the 16 bytes of a device's UUID; of a MIG instance, its own."""
        uuid = (ctypes.c_ubyte * UUID_BYTES)()
        self._call("cuDeviceGetUuid_v2", ctypes.byref(uuid), self._device(device))
        return bytes(uuid)

    def retain(self, device: int) -> None:
        """Creates the device's primary context, which all threads of the process share.

        Takes up to two seconds. The context stays until the process ends.
        """
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device(device))

    def pci_bus_id(self, device: int) -> str:
        """Returns a device's place, such as ``0000:3B:00.0``; for a MIG instance, its GPU's."""
        name, ordinal = ctypes.create_string_buffer(PCI_BUS_ID_BYTES), ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(ordinal), ctypes.c_int(device))
        self._call("cuDeviceGetPCIBusId", name, ctypes.c_int(PCI_BUS_ID_BYTES), ordinal)
        return name.value.decode("ascii")

    def allocation(self, address: int) -> Allocation:
        """Returns the allocation of an address. Call it on the thread that made the allocation."""
        base, size = ctypes.c_ulonglong(), ctypes.c_size_t()
        self._call(
            "cuMemGetAddressRange_v2",
            ctypes.byref(base),
            ctypes.byref(size),
            ctypes.c_ulonglong(address),
        )
        return Allocation(base.value, size.value)

    def copies_batches(self, device: int) -> bool:
        """Returns whether ``begin_batch`` works: with drivers of CUDA 12.8 (R570) and later.

        The device has to use the host's addresses of registered memory. If it has other addresses
        (WSL 2), a batched copy ends in an illegal address, and CUDA refuses every later call of
        the process (sgl-project/sglang issue 40232).
        """
        if not (hasattr(self._library, BATCHED) or hasattr(self._library, BATCHED_12_8)):
            return False
        value = ctypes.c_int()
        try:
            self._call(
                "cuDeviceGetAttribute",
                ctypes.byref(value),
                ctypes.c_int(HOST_ADDRESSES),
                self._device(device),
            )
        except CudaFailed:
            return False
        return bool(value.value)

    def begin_batch(self, copies: Items[PlainCopy], stream: int) -> None:
        """Begins copies by one call, in any order among themselves.

        The stream must not be the legacy one. An error does not say how many copies began: wait for
        the stream before you use their memory again. Call it only if ``copies_batches``.

        Source: ``cuMemcpyBatchAsync`` in cuda.h of CUDA 12.8.1 and of CUDA 13.5.
        """
        count = len(copies)
        targets = (ctypes.c_ulonglong * count)(*(each.target for each in copies))
        sources = (ctypes.c_ulonglong * count)(*(each.source for each in copies))
        sizes = (ctypes.c_size_t * count)(*(each.size_bytes for each in copies))
        attributes = CopyAttributes(srcAccessOrder=SOURCE_IN_STREAM_ORDER)
        first = ctypes.c_size_t(0)
        arguments = [targets, sources, sizes, ctypes.c_size_t(count)]
        # One set of attributes, valid from copy number `first` on.
        arguments += [ctypes.byref(attributes), ctypes.byref(first), ctypes.c_size_t(1)]
        name = BATCHED
        if not hasattr(self._library, BATCHED):
            name = BATCHED_12_8
            failed = ctypes.c_size_t()
            arguments.append(ctypes.byref(failed))
        self._call(name, *arguments, ctypes.c_void_p(stream))

    def _device(self, number: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(number))
        return device

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            raise CudaFailed(f"{name}: CUresult {result}")


def _load() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise DeviceUnavailable(f"there is no NVIDIA driver here: {error}") from error
