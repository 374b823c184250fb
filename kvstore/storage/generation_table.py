"""The generations of an extent's slots, in memory that workers map read-only."""

import ctypes
import fcntl
import mmap
import os

from kvstore.storage.errors import NotEnoughMemory
from kvstore.storage.extent import HostExport

GENERATION_BYTES = ctypes.sizeof(ctypes.c_uint64)
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# A memfd is open to every user at first, so a worker could open its descriptor again to write.
OWNERS_ALONE = 0o600


class GenerationTable:
    """A memfd with one uint64 a slot, zero at first, which only the store's uid can write.

    Slot i's generation is the eight bytes at ``8 * i``, in the machine's byte order. The core
    writes it through ``view`` when a slot becomes FREE, before the slot gets a new owner. An item
    is one aligned store of eight bytes, which x86-64 and AArch64 show to others whole or not at
    all.

    The store comes before any write by the slot's next owner. That owner learns of the slot over a
    socket, and the kernel's mutexes order the two on both architectures. A reader loads a page
    first and its generation after it, on AArch64 with a barrier between them.

    Workers get a description of the file that is open for reading only. They can neither map it
    writable nor open it again to write, unless they have the store's uid or are root. No seal is
    against writing: it would keep a later process of the store from mapping the table too. Raises
    :class:`NotEnoughMemory`.
    """

    def __init__(self, extent_id: int, slot_count: int) -> None:
        self._size_bytes = slot_count * GENERATION_BYTES
        self._closed = False
        try:
            writable = os.memfd_create(
                f"kvstore-generations-{extent_id}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
            )
            try:
                mapping = _map(writable, self._size_bytes)
                self._descriptor = opened_again(writable, os.O_RDONLY)
            finally:
                os.close(writable)
        except OSError as error:
            raise NotEnoughMemory(
                f"the kernel refused a generation table ({error.strerror})",
                requested_bytes=self._size_bytes,
                available_bytes=0,
            ) from error
        # Keeps the mapping for as long as a view exists.
        self.view: memoryview = memoryview(mapping).cast("Q")

    def describe(self) -> HostExport:
        """Returns the export with which other processes read the table, until ``close``."""
        return HostExport(self._descriptor, self._size_bytes)

    def close(self) -> None:
        """Closes the descriptor. The mapping ends with its last view. Idempotent."""
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)
            self.view = memoryview(b"").cast("Q")


def opened_again(descriptor: int, flags: int) -> int:
    """Opens a descriptor's file again, close-on-exec, as a description with its own flags.

    The file's mode decides whether this process may. Raises ``OSError``.
    """
    return os.open(f"/proc/self/fd/{descriptor}", flags | os.O_CLOEXEC)


def _map(descriptor: int, size_bytes: int) -> mmap.mmap:
    """Sets the file's size and mode, allocates, seals and maps it."""
    os.fchmod(descriptor, OWNERS_ALONE)
    os.posix_fallocate(descriptor, 0, size_bytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    mapping = mmap.mmap(descriptor, size_bytes)
    mapping.madvise(mmap.MADV_DONTFORK)
    mapping.madvise(mmap.MADV_DONTDUMP)
    return mapping
