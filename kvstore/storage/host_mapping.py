"""A sealed memfd that this process maps, and how its pages are allocated."""

import ctypes
import errno
import fcntl
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kvstore.storage import hugepages, memory, numa
from kvstore.storage.errors import NotEnoughMemory
from kvstore.storage.hugepages import Hugepages
from kvstore.storage.memory import Bound
from kvstore.storage.populate import populate

# A worker that maps a sealed extent cannot be made to fault by anybody's truncation.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# With fewer, fallocate is sooner: it takes 0.12 s a GiB of pages of 4 KiB, and MADV_POPULATE_WRITE
# 0.42 on one thread, since it zeroes and maps each page as well (benchmarks/start.py).
ENOUGH_THREADS = 4
# fallocate starts over when a signal comes, so it goes in steps of some milliseconds.
STEP_BYTES = 64 << 20


class HostTerms(NamedTuple):
    """How host memory is allocated: of which pages, near which node, by how many threads.

    Bounds of memory are read below ``root``.
    """

    root: Path = Path("/")
    hugepages: Hugepages = Hugepages.OFF
    numa_node: int | None = None
    threads: int = 1

    def bounds(self) -> list[Bound]:
        """Return what bounds an allocation now."""
        if self.hugepages is Hugepages.RESERVED:
            return [Bound(hugepages.available_bytes(self.root), "vm.nr_hugepages")]
        return memory.bounds(self.root)

    def require(self, size_bytes: int) -> None:
        """Raise :class:`NotEnoughMemory` unless ``size_bytes`` fit all bounds."""
        if self.hugepages is Hugepages.RESERVED:
            hugepages.require(self.rounded(size_bytes), self.root)
        else:
            memory.require(size_bytes, self.root)

    def rounded(self, size_bytes: int) -> int:
        """Return the size of a memfd for ``size_bytes``."""
        unit = self.hugepages.granularity
        return -(-size_bytes // unit) * unit

    def populates(self, *, registered: bool) -> bool:
        """Return whether this process zeroes and maps all pages, instead of allocating them only.

        A device that registers them would do so on one thread.
        """
        many = self.threads >= ENOUGH_THREADS
        return registered or many or self.hugepages is not Hugepages.OFF

    def refusal(self, size_bytes: int, error: OSError) -> NotEnoughMemory:
        """Return the error for memory that the kernel refused although the bounds allowed it."""
        available = min((each.available_bytes for each in self.bounds()), default=0)
        return NotEnoughMemory(
            f"the kernel refused the memory ({error.strerror})",
            requested_bytes=size_bytes,
            available_bytes=available,
        )


# On any node, of the kernel's own pages, on the caller's thread.
PLAIN = HostTerms()


def make_memfd(name: str, size: int, terms: HostTerms) -> int:
    """Return the descriptor of a sealed memfd whose pages are not allocated; raises ``OSError``.

    ``size`` is as ``terms`` rounds it.
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


def map_memfd(descriptor: int, size: int, terms: HostTerms) -> mmap.mmap:
    """Map a memfd and say how its pages are to be allocated; raises ``OSError``.

    Reserved pages are set aside by the mapping itself, or it is refused.
    """
    mapping = mmap.mmap(descriptor, size)
    mapping.madvise(mmap.MADV_DONTFORK)
    mapping.madvise(mmap.MADV_DONTDUMP)
    if terms.hugepages is Hugepages.TRANSPARENT:
        # A kernel that was built without them refuses.
        with suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)
    if terms.numa_node is not None:
        numa.prefer(address_of(mapping), size, terms.numa_node)
    return mapping


def fill(descriptor: int, mapping: mmap.mmap, start: int, size: int, threads: int) -> None:
    """Allocate, zero and map the pages of a part of a mapped memfd; raises ``OSError``.

    ``start`` is a multiple of the kernel's page. On a kernel before Linux 5.14 it does as
    ``allocate``.
    """
    try:
        populate(address_of(mapping) + start, size, threads)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        allocate(descriptor, start, size)


def allocate(descriptor: int, start: int, size: int) -> None:
    """Allocate the pages of a part of a memfd; raises ``OSError``.

    They are zeroed when they are first touched, by whoever does.
    """
    for step in range(start, start + size, STEP_BYTES):
        os.posix_fallocate(descriptor, step, min(STEP_BYTES, start + size - step))


def address_of(mapping: mmap.mmap) -> int:
    """Return where a writable mapping begins; nothing keeps it mapped."""
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(mapping))
