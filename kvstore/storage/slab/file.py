"""The file of a slab: preallocated, opened past the page cache, by one process at a time."""

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from secrets import token_bytes
from typing import Self

import structlog

from kvstore.storage.errors import SlabInUse, SlabUnusable
from kvstore.storage.slab.layout import ALIGNMENT
from kvstore.storage.slab.superblock import Superblock, decode_superblock

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

MODE = 0o600
SLAB_ID_BYTES = 16
# The kernel's limit of views for one call.
MAX_VIEWS = os.sysconf("SC_IOV_MAX")
# The unit of stat's st_blocks, on every file system.
STAT_BLOCK = 512

Vectored = Callable[[int, Sequence[memoryview], int], int]


class SlabFile:
    """An open slab file. Thread-safe; all but ``open`` raise ``OSError``.

    Offsets, lengths and addresses are multiples of ``ALIGNMENT``. ``superblock`` has the size of
    a segment, and ``segment_count`` is the number of segments.
    """

    def __init__(self, descriptor: int, superblock: Superblock, segment_count: int) -> None:
        self.descriptor = descriptor
        self.superblock = superblock
        self.segment_count = segment_count

    @classmethod
    def open(cls, path: Path, *, size_bytes: int, segment_bytes: int) -> Self:
        """Opens a slab, or creates one of ``size_bytes``, rounded down to whole segments.

        An existing file keeps the size of its segments. It keeps its pages if it only grows or
        shrinks. Raises :class:`SlabInUse` if another process has it open, and
        :class:`SlabUnusable` if it cannot be a slab.
        """
        try:
            descriptor = _open(path)
            try:
                return cls._prepare(descriptor, path, size_bytes, segment_bytes)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            why = error.strerror
            if isinstance(error, FileNotFoundError) and not path.parent.exists():
                why = f"the folder {path.parent} is not there: make it, for the server's user"
            raise SlabUnusable(f"{path}: {why}") from error

    @classmethod
    def _prepare(cls, descriptor: int, path: Path, size_bytes: int, segment_bytes: int) -> Self:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SlabInUse(f"{path}: another process has this slab") from None
        superblock = _superblock(descriptor, segment_bytes)
        count = (size_bytes - ALIGNMENT) // superblock.segment_bytes
        if count < 1:
            raise SlabUnusable(
                f"{path}: {size_bytes} bytes are no segment of {superblock.segment_bytes}"
            )
        whole = ALIGNMENT + count * superblock.segment_bytes
        _preallocate(descriptor, whole)
        made = cls(descriptor, superblock._replace(made=True), count)
        if not superblock.made:
            os.fsync(descriptor)
            made.write(0, [aligned(made.superblock.encode())])
        os.fsync(descriptor)
        _sync_folder(path.parent)
        return made

    def read(self, offset: int, views: Sequence[memoryview]) -> None:
        """Fills the views from ``offset`` on. Raises ``OSError`` if the file ends earlier."""
        self._move(os.preadv, offset, views)

    def write(self, offset: int, views: Sequence[memoryview]) -> None:
        """Writes the views from ``offset`` on, one after the other."""
        self._move(os.pwritev, offset, views)

    def sync(self) -> None:
        """Returns once all earlier writes survive a loss of power.

        After an error those writes stay in doubt, since the kernel reports it only once.
        """
        os.fdatasync(self.descriptor)

    def close(self) -> None:
        """Closes the file, so that others may open it. Once."""
        os.close(self.descriptor)

    def _move(self, call: Vectored, offset: int, views: Sequence[memoryview]) -> None:
        rest = list(views)
        while rest:
            moved = call(self.descriptor, rest[:MAX_VIEWS], offset)
            if moved == 0:
                raise OSError(errno.EIO, "the slab ends before what was asked for")
            offset += moved
            rest = _behind(rest, moved)


def aligned(data: bytes) -> memoryview:
    """Returns a copy of ``data`` at an address that suits O_DIRECT.

    Its size must be a multiple of the alignment.
    """
    memory = mmap.mmap(-1, len(data))
    memory.write(data)
    return memoryview(memory)


def _open(path: Path) -> int:
    """Opens a file with O_DIRECT, or through the page cache if the file system lacks it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT, MODE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    log.warning("slab_without_direct_io", path=str(path), why="the file system refuses O_DIRECT")
    return os.open(path, flags, MODE)


def _superblock(descriptor: int, segment_bytes: int) -> Superblock:
    """Returns the superblock of an existing file, or starts a new one.

    A file that was not preallocated to its end holds no pages, so it gets a new superblock.
    """
    size = os.fstat(descriptor).st_size
    if size >= ALIGNMENT:
        memory = aligned(bytes(ALIGNMENT))
        os.preadv(descriptor, [memory], 0)
        superblock = decode_superblock(bytes(memory))
        if superblock.made:
            return superblock
    elif size > 0:
        raise SlabUnusable("the file is not empty, and no slab: choose another path")
    if segment_bytes % ALIGNMENT or segment_bytes < 2 * ALIGNMENT:
        raise SlabUnusable(f"segments of {segment_bytes} bytes: no multiple of {ALIGNMENT}")
    begun = Superblock(token_bytes(SLAB_ID_BYTES), segment_bytes, made=False)
    os.ftruncate(descriptor, 0)
    os.pwritev(descriptor, [aligned(begun.encode())], 0)
    return begun


def _preallocate(descriptor: int, size_bytes: int) -> None:
    """Sets the size of the file and allocates all of it on the disk.

    Does not begin if the disk has too little room. Gives back what it allocated if the disk
    refuses, since a full disk harms other programs. Raises ``OSError``.
    """
    before = os.fstat(descriptor)
    disk = os.fstatvfs(descriptor)
    available = disk.f_bavail * disk.f_frsize
    wanted = size_bytes - before.st_blocks * STAT_BLOCK
    if wanted > available:
        raise OSError(errno.ENOSPC, f"{wanted} bytes wanted, {available} available on the disk")
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError:
        os.ftruncate(descriptor, before.st_size)
        raise
    os.ftruncate(descriptor, size_bytes)


def _behind(views: list[memoryview], moved: int) -> list[memoryview]:
    """Returns what remains of views after the first ``moved`` bytes."""
    for number, view in enumerate(views):
        if moved < len(view):
            return [view[moved:], *views[number + 1 :]]
        moved -= len(view)
    return []


def _sync_folder(folder: Path) -> None:
    """Makes the file's name survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
