"""Host memory of a descriptor, mapped until its last view is dropped."""

import ctypes
import fcntl
import mmap
import os
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from kvstore.v1 import types_pb2
from kvstore_client.memory.mapped_extent import MappedExtent, UntrustedExtent

if TYPE_CHECKING:
    import torch

# Without these seals the store could shrink the memory, and SIGBUS would kill a reader.
REQUIRED_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# From Linux 5.14; Python's mmap has no name for it. A read maps 16 pages at a time, and shared
# memory becomes writable by it. MADV_POPULATE_WRITE takes three times as long.
MADV_POPULATE_READ = 22
MAP_FAILED = ctypes.c_void_p(-1).value

# The bytes of one preparation: half a millisecond, in which other threads cannot map or unmap.
POPULATED_BYTES = 4 << 20

# Python's mmap keeps a duplicate of the descriptor for its lifetime, and its unmapping does not see
# a torch view. The C functions leave both to us.
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


# Is given the unmapping of memory. Does it once the memory is unregistered, on any thread.
Unregister: TypeAlias = Callable[[Callable[[], None]], None]
# Registers slots with a device, by their address, their bytes, and the bytes of a slot.
Register: TypeAlias = Callable[[int, int, int], Unregister]


class UntrustedMemory(Exception):
    """A descriptor's memory is smaller than announced, or could shrink."""


def check_memory(descriptor: int, size: int) -> None:
    """Raises :class:`UntrustedMemory` unless a memfd has ``size`` bytes and keeps them."""
    there = os.fstat(descriptor).st_size
    if size > there:
        raise UntrustedMemory(f"{size} bytes were announced, and its memory has {there} bytes")
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise UntrustedMemory("it is no memfd") from error
    if seals & REQUIRED_SEALS != REQUIRED_SEALS:
        raise UntrustedMemory(f"it has the seals {seals:#x}, not {REQUIRED_SEALS:#x}")


def map_memory(
    descriptor: int,
    size: int,
    *,
    writable: bool = True,
    unmapped: Callable[[], None] | None = None,
    register: Callable[[int], Unregister] | None = None,
) -> memoryview:
    """Maps ``size`` bytes of a descriptor and returns them. The descriptor stays the caller's.

    Every view of the bytes keeps them mapped. Neither forked children nor core dumps have
    them. After the last view is dropped, ``unmapped`` is called once, on the thread that
    dropped it and at any point of the program: it MUST NOT wait. Raises ``OSError`` if the
    bytes cannot be mapped. ``register`` is called with the address before this returns.
    """
    address = _map(descriptor, size, mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
    # Views keep this array alive, and the array keeps the mapping.
    memory = (ctypes.c_ubyte * size).from_address(address)
    unregister = register(address) if register else None
    end = weakref.finalize(memory, _unmap, address, size, os.getpid(), unmapped, unregister)
    # At exit the kernel unmaps, after the last thread that may still read.
    end.atexit = False
    view = memoryview(memory).cast("B")
    return view if writable else view.toreadonly()


def populate(view: memoryview) -> bool:
    """Fills this process's page tables for writable memory that :func:`map_memory` returned.

    The first touch of the memory then causes no page faults. Its bytes do not change. Returns
    False if the kernel cannot do it, as before Linux 5.14: then each first touch does.
    """
    if not view:
        return True
    address = ctypes.addressof(ctypes.c_ubyte.from_buffer(view))
    begin = address // mmap.PAGESIZE * mmap.PAGESIZE
    return bool(_LIBC.madvise(begin, address + len(view) - begin, MADV_POPULATE_READ) == 0)


def _map(descriptor: int, size: int, protection: int) -> int:
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
    address: int,
    size: int,
    pid: int,
    unmapped: Callable[[], None] | None,
    unregister: Unregister | None,
) -> None:
    if os.getpid() != pid:
        # A forked child: MADV_DONTFORK left nothing here, and other memory may be in its place.
        return

    def unmap() -> None:
        _LIBC.munmap(address, size)
        if unmapped is not None:
            unmapped()

    (unregister or _at_once)(unmap)


def _at_once(work: Callable[[], None]) -> None:
    work()


class HostExtent(MappedExtent):
    """An extent of host memory.

    Maps a memfd's ``descriptor``, which the caller closes. After the extent is unmapped,
    ``unmapped`` is called once with its id. The call is on the thread that dropped the last
    view, at any point of the program: it MUST NOT wait. With ``register`` a device can copy from
    the slots, and another thread unmaps them.

    Raises :class:`UntrustedExtent` for wrong seals or sizes, and ``OSError`` if the memory
    cannot be mapped.
    """

    device = None

    def __init__(
        self,
        extent: types_pb2.Extent,
        descriptor: int,
        unmapped: Callable[[int], None] | None = None,
        register: Register | None = None,
    ) -> None:
        size = extent.host.size_bytes
        super().__init__(extent, size)
        try:
            check_memory(descriptor, size)
        except UntrustedMemory as error:
            raise UntrustedExtent(f"extent {extent.extent_id}: {error}") from error
        report = partial(unmapped, self.extent_id) if unmapped else None
        registered = partial(self._register, register) if register else None
        self._memory = map_memory(descriptor, size, unmapped=report, register=registered)
        # One byte a slot: whether :meth:`fill` was called for it.
        self._filled = bytearray(self.slot_count)

    def view(self) -> memoryview:
        """Returns all slots as bytes: slot i begins at ``i * slot_bytes``."""
        return self._memory[self._slots]

    def content(self, index: int) -> memoryview:
        """Returns one slot's bytes, in place; raises ``IndexError``."""
        return self.slot(index)

    def wait_for_device(self) -> None:
        """Does nothing: devices use this memory only by copies that the caller makes."""

    def populate(self, begin: int) -> int | None:
        """Fills this process's page tables for the next few MiB, see :func:`populate`."""
        slots = self.view()
        end = min(begin + POPULATED_BYTES, len(slots))
        return end if populate(slots[begin:end]) and end < len(slots) else None

    def _register(self, register: Register, address: int) -> Unregister:
        begin, end = self._slots.start, self._slots.stop
        return register(address + begin, end - begin, self.slot_bytes)

    def fill(self, slots: Iterable[int], part: slice) -> None:
        """Fills this process's page tables for ``part`` of each slot, once; see :func:`populate`.

        Raises ``IndexError`` for a slot that does not exist.
        """
        view, (first, stop, _) = self.view(), part.indices(self.slot_bytes)
        begin = end = 0
        for slot in sorted(each for each in slots if not self._filled[each]):
            self._filled[slot] = True
            start = slot * self.slot_bytes + first
            if start != end or end - begin >= POPULATED_BYTES:
                populate(view[begin:end])
                begin = start
            end = slot * self.slot_bytes + stop
        populate(view[begin:end])

    def _bytes(self) -> "torch.Tensor":
        import torch  # noqa: PLC0415  # on demand: clients without torch use views

        return torch.frombuffer(self.view(), dtype=torch.uint8)
