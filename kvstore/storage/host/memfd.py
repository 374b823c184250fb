"""A sealed memfd that this process maps, and how its pages are allocated."""

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kvstore.storage.errors import ExtentUnusable, NotEnoughMemory
from kvstore.storage.host import hugepages, numa
from kvstore.storage.host import machine_limits as memory
from kvstore.storage.host.hugepages import Hugepages
from kvstore.storage.host.machine_limits import Bound
from kvstore.storage.host.populate import populate

# No process can truncate a sealed extent, so no process can make a worker that maps it fault.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# fallocate is faster with fewer threads: it takes 0.12 s a GiB of pages of 4 KiB.
# MADV_POPULATE_WRITE takes 0.42 on one thread, since it zeroes and maps each page as well
# (benchmarks/start.py).
ENOUGH_THREADS = 4
# fallocate starts over after a signal, so it runs in steps of some milliseconds.
STEP_BYTES = 64 << 20


class HostTerms(NamedTuple):
    """Options of an allocation of host memory: page size, preferred node, number of threads.

    Bounds of memory are read below ``root``.
    """

    root: Path = Path("/")
    hugepages: Hugepages = Hugepages.OFF
    numa_node: int | None = None
    threads: int = 1

    @property
    def is_plain(self) -> bool:
        """True if any process can allocate the memory: of ordinary pages, on any node."""
        return self.hugepages is Hugepages.OFF and self.numa_node is None

    def bounds(self) -> list[Bound]:
        """Returns the bounds of an allocation now."""
        if self.hugepages is Hugepages.RESERVED:
            return [Bound(hugepages.available_bytes(self.root), "vm.nr_hugepages")]
        return memory.bounds(self.root)

    def require(self, size_bytes: int) -> None:
        """Raises :class:`NotEnoughMemory` unless ``size_bytes`` fit all bounds."""
        if self.hugepages is Hugepages.RESERVED:
            hugepages.require(self.rounded(size_bytes), self.root)
        else:
            memory.require(size_bytes, self.root)

    def rounded(self, size_bytes: int) -> int:
        """Returns the size of a memfd for ``size_bytes``."""
        unit = self.hugepages.granularity
        return -(-size_bytes // unit) * unit

    def populates(self, *, registered: bool) -> bool:
        """Returns whether this process zeroes and maps all pages, instead of only allocating them.

        A device that registers unmapped pages would zero and map them on one thread.
        """
        many = self.threads >= ENOUGH_THREADS
        return registered or many or self.hugepages is not Hugepages.OFF

    def refusal(self, size_bytes: int, error: OSError) -> NotEnoughMemory:
        """Returns the error for memory that the kernel refused although the bounds allowed it."""
        available = min((each.available_bytes for each in self.bounds()), default=0)
        return NotEnoughMemory(
            f"the kernel refused the memory ({error.strerror})",
            requested_bytes=size_bytes,
            available_bytes=available,
        )


# On any node, with the kernel's own page size, on the caller's thread.
PLAIN = HostTerms()


def make_memfd(name: str, size: int, terms: HostTerms) -> int:
    """Returns the descriptor of a sealed memfd without pages; raises ``OSError``.

    ``size`` is a result of ``terms.rounded``.
    """
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | terms.hugepages.memfd_flags
    descriptor = os.memfd_create(name, flags)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def inherited_size(descriptor: int, sizes: Collection[int], names: Collection[str]) -> int:
    """Returns the size of a memfd of another process, which has to be one of ``sizes``.

    The memfd was made under one of ``names``. The kernel keeps the name for as long as the memory,
    so two swapped descriptors are found. Raises :class:`ExtentUnusable`, also if the memfd can be
    truncated.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        size = os.fstat(descriptor).st_size
        link = str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError as error:
        raise ExtentUnusable(f"a descriptor is no memfd: {error}") from error
    if seals & SEALS != SEALS or size not in sizes:
        raise ExtentUnusable(
            f"a memfd has {size} bytes and the seals {seals:#x}, and needs {min(sizes)} bytes and "
            f"the seals {SEALS:#x}"
        )
    if link not in {f"/memfd:{name} (deleted)" for name in names}:
        raise ExtentUnusable(f"a memfd is {link}, and not {' or '.join(sorted(names))}")
    return size


def map_memfd(descriptor: int, size: int, terms: HostTerms) -> mmap.mmap:
    """Maps a memfd and sets how its pages are allocated; raises ``OSError``.

    For reserved pages the kernel sets all of them aside, or refuses the mapping.
    """
    mapping = mmap.mmap(descriptor, size)
    mapping.madvise(mmap.MADV_DONTFORK)
    mapping.madvise(mmap.MADV_DONTDUMP)
    if terms.hugepages is Hugepages.TRANSPARENT:
        # A kernel built without transparent pages refuses.
        with suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)
    if terms.numa_node is not None:
        numa.prefer(address_of(mapping), size, terms.numa_node)
    return mapping


def fill(descriptor: int, mapping: mmap.mmap, start: int, size: int, threads: int) -> None:
    """Allocates, zeroes and maps the pages of a part of a mapped memfd; raises ``OSError``.

    ``start`` is a multiple of the kernel's page. On a kernel before Linux 5.14 it only allocates,
    as ``allocate`` does.
    """
    try:
        populate(address_of(mapping) + start, size, threads)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        allocate(descriptor, start, size)


def allocate(descriptor: int, start: int, size: int) -> None:
    """Allocates the pages of a part of a memfd; raises ``OSError``.

    The first process that touches a page zeroes it.
    """
    for step in range(start, start + size, STEP_BYTES):
        os.posix_fallocate(descriptor, step, min(STEP_BYTES, start + size - step))


def address_of(mapping: mmap.mmap) -> int:
    """Returns the address of a writable mapping; the caller must keep it mapped."""
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(mapping))
