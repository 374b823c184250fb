"""Calls of CUDA's driver by ctypes that cupy lacks, or offers only with CUDA's headers."""

import ctypes
from typing import Any, Final

LIBRARY: Final = "libcuda.so.1"
# Values of cuda.h.
PINNED: Final = 1
POSIX_DESCRIPTOR: Final = 1
ON_DEVICE: Final = 1
READ_ONLY: Final = 1
READ_WRITE: Final = 3
MINIMUM_GRANULARITY: Final = 0

# Counts in one word of memory until a time is over. The driver compiles PTX itself.
PTX: Final = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry count(.param .u64 word, .param .u64 nanoseconds)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [word];
    cvta.to.global.u64 %rd1, %rd1;
    ld.param.u64 %rd2, [nanoseconds];
    mov.u64 %rd3, %globaltimer;
    ld.volatile.global.u32 %r1, [%rd1];
again:
    add.u32 %r1, %r1, 1;
    st.volatile.global.u32 [%rd1], %r1;
    mov.u64 %rd4, %globaltimer;
    sub.u64 %rd5, %rd4, %rd3;
    setp.lt.u64 %p1, %rd5, %rd2;
    @%p1 bra again;
    ret;
}
\0"""


class DriverError(Exception):
    """A call of the driver failed: its name and the driver's answer."""


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class AllocationFlags(ctypes.Structure):
    """CUmemAllocationProp.allocFlags."""

    _fields_ = (
        ("compression_type", ctypes.c_ubyte),
        ("gpu_direct_rdma_capable", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("requested_handle_types", ctypes.c_int),
        ("location", Location),
        ("win32_handle_meta_data", ctypes.c_void_p),
        ("alloc_flags", AllocationFlags),
    )


class AccessDescription(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", ctypes.c_int))


def why_no_device() -> str | None:
    """Returns why no CUDA device can be used, or None if one can. Makes no context."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        return str(error)
    count = ctypes.c_int(0)
    if (status := library.cuInit(0)) != 0:
        return f"cuInit answers {status}"
    if (status := library.cuDeviceGetCount(ctypes.byref(count))) != 0 or count.value == 0:
        return f"the driver shows {count.value} devices (status {status})"
    return None


class Driver:
    """The driver's calls on the context that is current in the calling thread.

    Raises ``OSError`` if the driver is missing; each call raises :class:`DriverError`.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401 - as the driver's
        """Calls a function of the driver."""
        status = getattr(self._library, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(text))
            raise DriverError(f"{name}: {(text.value or b'?').decode()} ({status})")

    def counting_kernel(self) -> ctypes.c_void_p:
        """Loads ``PTX`` and returns its kernel."""
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.call("cuModuleGetFunction", ctypes.byref(kernel), module, b"count")
        return kernel

    def launch(self, kernel: ctypes.c_void_p, address: int, nanoseconds: int, stream: int) -> None:
        """Queues one thread of the kernel, on the word at ``address``."""
        values = ctypes.c_uint64(address), ctypes.c_uint64(nanoseconds)
        pointers = (ctypes.c_void_p * 2)(*(ctypes.addressof(each) for each in values))
        numbers = [ctypes.c_uint(each) for each in (1, 1, 1, 1, 1, 1, 0)]
        self.call("cuLaunchKernel", kernel, *numbers, ctypes.c_void_p(stream), pointers, None)

    def properties(self) -> AllocationProperties:
        """Returns a description of device 0's memory that a descriptor can name."""
        made = AllocationProperties()
        made.type, made.requested_handle_types = PINNED, POSIX_DESCRIPTOR
        made.location.type, made.location.id = ON_DEVICE, 0
        return made

    def granularity(self) -> int:
        """Returns the bytes that sizes are multiples of."""
        size, asked = ctypes.c_size_t(), self.properties()
        self.call(
            "cuMemGetAllocationGranularity",
            *(ctypes.byref(size), ctypes.byref(asked), ctypes.c_int(MINIMUM_GRANULARITY)),
        )
        return size.value

    def create(self, size: int) -> ctypes.c_uint64:
        """Allocates physical memory and returns the driver's number of it."""
        number, asked = ctypes.c_uint64(), self.properties()
        arguments = ctypes.c_size_t(size), ctypes.byref(asked), ctypes.c_uint64(0)
        self.call("cuMemCreate", ctypes.byref(number), *arguments)
        return number

    def export(self, number: ctypes.c_uint64) -> int:
        """Returns a descriptor of physical memory, for another process."""
        descriptor = ctypes.c_int(-1)
        arguments = number, ctypes.c_int(POSIX_DESCRIPTOR), ctypes.c_uint64(0)
        self.call("cuMemExportToShareableHandle", ctypes.byref(descriptor), *arguments)
        return descriptor.value

    def take_in(self, descriptor: int) -> ctypes.c_uint64:
        """Returns the driver's number of the memory that a descriptor names."""
        number = ctypes.c_uint64()
        arguments = ctypes.c_void_p(descriptor), ctypes.c_int(POSIX_DESCRIPTOR)
        self.call("cuMemImportFromShareableHandle", ctypes.byref(number), *arguments)
        return number

    def map(self, number: ctypes.c_uint64, size: int, access: int) -> int:
        """Maps physical memory, gives its number back and returns the address."""
        address = ctypes.c_uint64()
        none = ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0)
        self.call("cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(size), *none)
        flags = ctypes.c_size_t(0), number, ctypes.c_uint64(0)
        self.call("cuMemMap", address, ctypes.c_size_t(size), *flags)
        self.allow(address.value, size, access)
        self.call("cuMemRelease", number)
        return address.value

    def allow(self, address: int, size: int, access: int) -> None:
        """Sets how this process may use mapped memory."""
        description = AccessDescription(Location(ON_DEVICE, 0), access)
        arguments = ctypes.byref(description), ctypes.c_size_t(1)
        self.call("cuMemSetAccess", ctypes.c_uint64(address), ctypes.c_size_t(size), *arguments)

    def unmap(self, address: int, size: int) -> None:
        """Unmaps memory and gives its addresses back."""
        arguments = ctypes.c_uint64(address), ctypes.c_size_t(size)
        self.call("cuMemUnmap", *arguments)
        self.call("cuMemAddressFree", *arguments)
