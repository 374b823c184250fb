"""An extent of host memory: a sealed memfd, mapped."""

import ctypes
import fcntl
import mmap
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvstore.v1 import types_pb2
from kvstore_client.extents import MappedExtent, UntrustedExtent

if TYPE_CHECKING:
    import torch

# Without them the store could take memory away under a reader, who would die of SIGBUS.
REQUIRED_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
MAP_FAILED = ctypes.c_void_p(-1).value

# Python's mmap keeps a duplicate of the descriptor for its lifetime, and its unmapping does not see
# a torch view. The C functions leave both to us.
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class HostExtent(MappedExtent):
    """Memory of this machine.

    Maps a memfd's ``descriptor``, which stays the caller's to close: nothing
    here keeps it. Once it is unmapped, ``unmapped`` is called with the extent's
    id, once, on the thread that dropped the last view, which may be in the
    middle of anything: it MUST NOT wait.

    Raises :class:`UntrustedExtent` where seals or sizes are not as they should
    be, ``OSError`` where the memory cannot be mapped.
    """

    device = None

    def __init__(
        self,
        extent: types_pb2.Extent,
        descriptor: int,
        unmapped: Callable[[int], None] | None = None,
    ) -> None:
        size = extent.host.size_bytes
        super().__init__(extent, size)
        _check(extent, descriptor)
        address = _map(descriptor, size)
        # Views keep this array alive, and the array keeps the mapping.
        self._memory = (ctypes.c_ubyte * size).from_address(address)
        end = weakref.finalize(
            self._memory, _unmap, address, size, os.getpid(), self.extent_id, unmapped
        )
        # At exit the kernel unmaps, after the last thread that may still read.
        end.atexit = False

    def view(self) -> memoryview:
        """Return all slots as bytes: slot i begins at ``i * slot_bytes``."""
        return memoryview(self._memory).cast("B")[self._slots]

    def wait_for_device(self) -> None:
        """Do nothing: no device works on this memory but through copies of its user's."""

    def _bytes(self) -> "torch.Tensor":
        import torch  # noqa: PLC0415  # on demand: clients without torch use views

        return torch.frombuffer(self.view(), dtype=torch.uint8)


def _check(extent: types_pb2.Extent, descriptor: int) -> None:
    there = os.fstat(descriptor).st_size
    if extent.host.size_bytes > there:
        size = extent.host.size_bytes
        msg = f"extent {extent.extent_id} has {size} bytes, and its memory has {there} bytes"
        raise UntrustedExtent(msg)
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        msg = f"extent {extent.extent_id} is no memfd"
        raise UntrustedExtent(msg) from error
    if seals & REQUIRED_SEALS != REQUIRED_SEALS:
        msg = f"extent {extent.extent_id} has the seals {seals:#x}, not {REQUIRED_SEALS:#x}"
        raise UntrustedExtent(msg)


def _map(descriptor: int, size: int) -> int:
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = _LIBC.mmap(None, size, protection, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"mmap of {size} bytes: {os.strerror(number)}")
    for advice in (mmap.MADV_DONTFORK, mmap.MADV_DONTDUMP):
        if _LIBC.madvise(address, size, advice) != 0:
            number = ctypes.get_errno()
            _LIBC.munmap(address, size)
            raise OSError(number, f"madvise({advice}): {os.strerror(number)}")
    return int(address)


def _unmap(
    address: int, size: int, pid: int, extent_id: int, unmapped: Callable[[int], None] | None
) -> None:
    if os.getpid() != pid:
        # MADV_DONTFORK left nothing here; other memory may have taken the place.
        return
    _LIBC.munmap(address, size)
    if unmapped is not None:
        unmapped(extent_id)
