"""One extent of the store's memory, mapped into this process."""

import ctypes
import fcntl
import mmap
import os
import weakref
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

from kvstore.v1 import types_pb2
from kvstore_client.layout import PagedContent, PageLayout

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


class UntrustedExtent(Exception):
    """What was announced is not what came: no memory to work on."""


class MappedExtent:
    """The memory of one extent, readable and writable, shared with all who map it.

    Maps a memfd's ``descriptor``, which stays the caller's to close: nothing
    here keeps it. The memory is unmapped when this object and every view that
    it gave are gone; then ``unmapped`` is called with the extent's id, once, on
    the thread that dropped the last of them, which may be in the middle of
    anything: it MUST NOT wait. A forked child has no such memory, and does not
    unmap. Any thread may use it.

    Raises :class:`UntrustedExtent` where seals or sizes are not as they should
    be, ``OSError`` where the memory cannot be mapped.
    """

    def __init__(
        self,
        extent: types_pb2.Extent,
        descriptor: int,
        unmapped: Callable[[int], None] | None = None,
    ) -> None:
        self.extent_id = extent.extent_id
        self.arena_id = extent.arena_id
        self.slot_count = extent.slot_count
        self.slot_bytes = extent.slot_bytes
        size = extent.host.size_bytes
        _check(extent, descriptor)
        address = _map(descriptor, size)
        # Views keep this array alive, and the array keeps the mapping.
        self._memory = (ctypes.c_ubyte * size).from_address(address)
        end = weakref.finalize(
            self._memory, _unmap, address, size, os.getpid(), self.extent_id, unmapped
        )
        # At exit the kernel unmaps, after the last thread that may still read.
        end.atexit = False
        self._start = extent.offset

    def view(self) -> memoryview:
        """Return all slots as bytes: slot i begins at ``i * slot_bytes``."""
        whole = memoryview(self._memory).cast("B")
        return whole[self._start : self._start + self.slot_count * self.slot_bytes]

    def slot(self, index: int) -> memoryview:
        """Return one slot as bytes; raises ``IndexError``."""
        if not 0 <= index < self.slot_count:
            msg = f"extent {self.extent_id} has {self.slot_count} slots, none is {index}"
            raise IndexError(msg)
        return self.view()[index * self.slot_bytes : (index + 1) * self.slot_bytes]

    def tensor(self, layout: PageLayout) -> "torch.Tensor":
        """Return all slots as ``[slots, *page shape]`` of the layout's dtype.

        Opaque pages are ``[slots, page_bytes]`` of uint8. Loads torch.
        """
        import torch  # noqa: PLC0415  # on demand: clients without torch use views

        slots = torch.frombuffer(self.view(), dtype=torch.uint8).view(self.slot_count, -1)
        pages = slots[:, : layout.page_bytes]
        if not isinstance(layout.content, PagedContent):
            return pages
        shape = layout.content.page_shape(layout.page_tokens)
        elements = pages.view(getattr(torch, layout.content.dtype))
        assert elements.shape[1] == prod(shape)  # the layout checked itself
        return elements.view(self.slot_count, *shape)


def _check(extent: types_pb2.Extent, descriptor: int) -> None:
    if not extent.slot_count or not extent.slot_bytes:
        msg = f"extent {extent.extent_id} has no slots"
        raise UntrustedExtent(msg)
    size = extent.host.size_bytes
    needed = extent.offset + extent.slot_count * extent.slot_bytes
    there = os.fstat(descriptor).st_size
    if not needed <= size <= there:
        msg = f"extent {extent.extent_id} needs {needed} of {size} bytes, and there are {there}"
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
