"""Shared memory of a descriptor, mapped until its last view is dropped."""

import ctypes
import fcntl
import mmap
import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

# Without these seals the store could shrink the memory, and SIGBUS would kill a reader.
REQUIRED_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# From Linux 5.14; Python's mmap has no name for it. A read maps 16 pages at a time, and shared
# memory becomes writable by it. MADV_POPULATE_WRITE takes three times as long.
MADV_POPULATE_READ = 22
# Of linux/mman.h, the same on x86-64 and AArch64; Python's mmap has no names for them.
PROT_NONE = 0
MAP_FIXED = 0x10
MAP_NORESERVE = 0x4000
MAP_FAILED = ctypes.c_void_p(-1).value

# Python's mmap keeps a duplicate of the descriptor for its lifetime, and its unmapping does not see
# a torch view. The C functions leave both to us.
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

# Is given the unmapping of memory. Does it once the memory is unregistered, on any thread.
Unregister: TypeAlias = Callable[[Callable[[], None]], None]


class UntrustedMemory(Exception):
    """A descriptor's memory is smaller than announced, or could shrink."""


class MemoryIdentity(NamedTuple):
    """The memory behind a descriptor, as fstat describes it.

    The inode names no other memory while this one is mapped.
    """

    device: int
    inode: int
    size_bytes: int


def identity_of(descriptor: int) -> MemoryIdentity:
    """Returns the identity of a descriptor's memory."""
    status = os.fstat(descriptor)
    return MemoryIdentity(status.st_dev, status.st_ino, status.st_size)


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
    bytes cannot be mapped. ``register`` is called with the address before this returns. If it
    raises, the bytes are unmapped.
    """
    address = _map(descriptor, size, mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
    unmap = partial(_unmap, address, size)
    view = view_mapped(address, size, unmap, unmapped=unmapped, register=register)
    return view if writable else view.toreadonly()


def view_mapped(
    address: int,
    size: int,
    unmap: Callable[[], bool],
    *,
    dropped: Callable[[], object] | None = None,
    unmapped: Callable[[], None] | None = None,
    register: Callable[[int], Unregister] | None = None,
) -> memoryview:
    """Returns mapped bytes. Once the last view of them is dropped, calls ``dropped``.

    Then unregisters them, and calls ``unmap``, which returns whether it succeeded. Calls
    ``register`` and ``unmapped`` as :func:`map_memory` does, and ``unmapped`` only after a success.
    """
    try:
        unregister = _at_once if register is None else register(address)
    except BaseException:
        unmap()
        raise
    # Views keep this array alive, and the array keeps the mapping.
    memory = (ctypes.c_ubyte * size).from_address(address)
    end = weakref.finalize(memory, _end, os.getpid(), dropped, unregister, unmap, unmapped)
    # At exit the kernel unmaps, after the last thread that may still read.
    end.atexit = False
    return memoryview(memory).cast("B")


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


def reserve_addresses(size: int) -> int:
    """Reserves ``size`` bytes of addresses without memory, and returns the first.

    A touch of one is SIGSEGV. No other mapping of this process comes there. Neither forked
    children nor core dumps have them. Raises ``OSError`` if the process may not have so many.
    """
    address = _mmap(None, size, PROT_NONE, _RESERVED, -1)
    _advise_or_unmap(address, size)
    return address


def map_into(address: int, descriptor: int, size: int) -> None:
    """Maps a descriptor's first ``size`` bytes, writable, over reserved addresses.

    Raises ``OSError``. The addresses may have lost their reservation then, so another mapping of
    this process can be there: they must not be used again, and not be released.
    """
    _mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED, descriptor)
    _advise(address, size)


def reserve_again(address: int, size: int) -> None:
    """Unmaps what :func:`map_into` mapped, and keeps its addresses reserved.

    Raises ``OSError``, as :func:`map_into` does.
    """
    _mmap(address, size, PROT_NONE, _RESERVED | MAP_FIXED, -1)
    _advise(address, size)


def release_addresses(address: int, size: int) -> None:
    """Gives reserved addresses back, with all that is mapped there."""
    _LIBC.munmap(address, size)


_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE


def _map(descriptor: int, size: int, protection: int) -> int:
    address = _mmap(None, size, protection, mmap.MAP_SHARED, descriptor)
    _advise_or_unmap(address, size)
    return address


def _mmap(address: int | None, size: int, protection: int, flags: int, descriptor: int) -> int:
    mapped = _LIBC.mmap(address, size, protection, flags, descriptor, 0)
    if mapped is None or mapped == MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"mmap of {size} bytes: {os.strerror(number)}")
    return int(mapped)


def _advise(address: int, size: int) -> None:
    for advice in (mmap.MADV_DONTFORK, mmap.MADV_DONTDUMP):
        if _LIBC.madvise(address, size, advice) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"madvise({advice}): {os.strerror(number)}")


def _advise_or_unmap(address: int, size: int) -> None:
    try:
        _advise(address, size)
    except OSError:
        _LIBC.munmap(address, size)
        raise


def _unmap(address: int, size: int) -> bool:
    release_addresses(address, size)
    return True


def _end(
    pid: int,
    dropped: Callable[[], object] | None,
    unregister: Unregister,
    unmap: Callable[[], bool],
    unmapped: Callable[[], None] | None,
) -> None:
    if os.getpid() != pid:
        # A forked child: MADV_DONTFORK left nothing here, and other memory may be in its place.
        return
    if dropped is not None:
        dropped()

    def unmap_and_report() -> None:
        if unmap() and unmapped is not None:
            unmapped()

    unregister(unmap_and_report)


def _at_once(unmap: Callable[[], None]) -> None:
    """Unmaps memory that is not registered."""
    unmap()
