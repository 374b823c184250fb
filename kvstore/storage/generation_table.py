"""The generations of an extent's slots, in memory that workers map read-only."""

import ctypes
import fcntl
import mmap
import os
import stat
from typing import Self

from kvstore.storage.errors import ExtentUnusable, NotEnoughMemory
from kvstore.storage.extent import HostExport
from kvstore.storage.held_memory import HeldMemory, table_name
from kvstore.storage.host.memfd import inherited_size

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
    against writing: it would keep a later process of the store from mapping the table too.
    """

    def __init__(self, descriptor: int, mapping: mmap.mmap) -> None:
        """Owns the descriptor, which is open for reading only. Call ``make`` or ``restore``."""
        self._export = HostExport(descriptor, len(mapping))
        self._closed = False
        # Keeps the mapping for as long as a view exists.
        self.view: memoryview = memoryview(mapping).cast("Q")

    @classmethod
    def make(cls, extent_id: int, slot_count: int, held: HeldMemory | None = None) -> Self:
        """Returns a new table, which is deposited. Raises :class:`NotEnoughMemory`."""
        size_bytes = slot_count * GENERATION_BYTES
        try:
            writable = os.memfd_create(
                _memfd_name(extent_id), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
            )
            try:
                os.fchmod(writable, OWNERS_ALONE)
                os.posix_fallocate(writable, 0, size_bytes)
                fcntl.fcntl(writable, fcntl.F_ADD_SEALS, SEALS)
                mapping = _map(writable, size_bytes)
                table = cls(opened_again(writable, os.O_RDONLY), mapping)
            finally:
                os.close(writable)
        except OSError as error:
            raise NotEnoughMemory(
                f"the kernel refused a generation table ({error.strerror})",
                requested_bytes=size_bytes,
                available_bytes=0,
            ) from error
        if held is not None:
            try:
                # The description for workers: the store's next process opens it again to write.
                held.keep(table_name(extent_id), table.describe().descriptor)
            except BaseException:
                table.close()
                raise
        return table

    @classmethod
    def restore(cls, extent_id: int, slot_count: int, descriptor: int) -> Self:
        """Returns the table that a former process of the store deposited.

        Every process that mapped it sees what is written from now on. The descriptor belongs to
        the table. Raises :class:`ExtentUnusable`, and then it is the caller's.
        """
        sizes = {slot_count * GENERATION_BYTES}
        size_bytes = inherited_size(descriptor, sizes, {_memfd_name(extent_id)})
        access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if (access, mode) != (os.O_RDONLY, OWNERS_ALONE):
            raise ExtentUnusable(
                f"a generation table has access {access} and mode {mode:o}, and workers could "
                f"write it: it needs {os.O_RDONLY} and {OWNERS_ALONE:o}"
            )
        try:
            writable = opened_again(descriptor, os.O_RDWR)
            try:
                mapping = _map(writable, size_bytes)
            finally:
                os.close(writable)
        except OSError as error:
            raise ExtentUnusable(f"a generation table cannot be mapped: {error}") from error
        return cls(descriptor, mapping)

    def describe(self) -> HostExport:
        """Returns the export with which other processes read the table, until ``close``."""
        return self._export

    def close(self) -> None:
        """Closes the descriptor. The mapping ends with its last view. Idempotent."""
        if not self._closed:
            self._closed = True
            os.close(self._export.descriptor)
            self.view = memoryview(b"").cast("Q")


def opened_again(descriptor: int, flags: int) -> int:
    """Opens a descriptor's file again, close-on-exec, as a description with its own flags.

    The file's mode decides whether this process may. Raises ``OSError``.
    """
    return os.open(f"/proc/self/fd/{descriptor}", flags | os.O_CLOEXEC)


def _memfd_name(extent_id: int) -> str:
    """Returns the kernel's name of a table's memory."""
    return f"kvstore-generations-{extent_id}"


def _map(descriptor: int, size_bytes: int) -> mmap.mmap:
    """Maps a table, and keeps it out of forked children and core dumps."""
    mapping = mmap.mmap(descriptor, size_bytes)
    mapping.madvise(mmap.MADV_DONTFORK)
    mapping.madvise(mmap.MADV_DONTDUMP)
    return mapping
