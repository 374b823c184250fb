"""The generations of an extent's slots, in memory that workers map read-only."""

import ctypes
import errno
import fcntl
import mmap
import os

import structlog

from kvstore.storage.errors import NotEnoughMemory
from kvstore.storage.extent import HostExport

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

GENERATION_BYTES = ctypes.sizeof(ctypes.c_uint64)
# F_SEAL_FUTURE_WRITE of linux/fcntl.h, since Linux 5.1: forbids new writable mappings.
F_SEAL_FUTURE_WRITE = 0x0010
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class GenerationTable:
    """A memfd with one uint64 a slot, zero at first, writable by this mapping only.

    Slot i's generation is the eight bytes at ``8 * i``, in the machine's byte order. The core
    writes it through ``view`` when a slot becomes FREE, before the slot gets a new owner. An item
    is one aligned store of eight bytes, which x86-64 and AArch64 show to others whole or not at
    all.

    The store comes before any write by the slot's next owner. That owner learns of the slot over a
    socket, and the kernel's mutexes order the two on both architectures. A reader loads a page
    first and its generation after it, on AArch64 with a barrier between them.

    The table is mapped writable before it is sealed. A kernel older than 5.1 refuses the seal
    against writing, which is logged; workers are then trusted not to write. Raises
    :class:`NotEnoughMemory`.
    """

    def __init__(self, extent_id: int, slot_count: int) -> None:
        self._size_bytes = slot_count * GENERATION_BYTES
        self._closed = False
        try:
            self._descriptor = os.memfd_create(
                f"kvstore-generations-{extent_id}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
            )
            try:
                mapping = _map(self._descriptor, self._size_bytes)
            except BaseException:
                os.close(self._descriptor)
                raise
        except OSError as error:
            raise NotEnoughMemory(
                f"the kernel refused a generation table ({error.strerror})",
                requested_bytes=self._size_bytes,
                available_bytes=0,
            ) from error
        # Keeps the mapping for as long as a view exists.
        self.view: memoryview = memoryview(mapping).cast("Q")

    def describe(self) -> HostExport:
        """Returns the export with which other processes map the table, until ``close``."""
        return HostExport(self._descriptor, self._size_bytes)

    def close(self) -> None:
        """Closes the descriptor. The mapping ends with its last view. Idempotent."""
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)
            self.view = memoryview(b"").cast("Q")


def _map(descriptor: int, size_bytes: int) -> mmap.mmap:
    """Sets the file's size, allocates and maps it, and then seals it."""
    os.posix_fallocate(descriptor, 0, size_bytes)
    mapping = mmap.mmap(descriptor, size_bytes)
    mapping.madvise(mmap.MADV_DONTFORK)
    mapping.madvise(mmap.MADV_DONTDUMP)
    try:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS | F_SEAL_FUTURE_WRITE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        log.warning("generation_table_writable", why="this kernel has no F_SEAL_FUTURE_WRITE")
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return mapping
