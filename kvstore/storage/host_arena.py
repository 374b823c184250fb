"""Host memory that workers map: a sealed memfd for each extent."""

import fcntl
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import structlog

from kvstore.storage import memory
from kvstore.storage.errors import NotEnoughMemory
from kvstore.storage.extent import ExtentDescription, ExtentShape, HostExport, SlotReader

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# A worker that maps a sealed extent cannot be made to fault by anybody's truncation.
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# fallocate starts over when a signal comes, so it goes in steps of some milliseconds.
STEP_BYTES = 64 << 20

# Tells a device of memory that is cut into slots of so many bytes; returns what undoes it,
# which is called before the memory goes.
Register: TypeAlias = Callable[[memoryview, int], Callable[[], None]]


class HostExtent:
    """One extent of host memory: allocated whole, zero, mapped by this process too.

    Memory that is granted is there: it was prefaulted, so that no write to a slot
    can fail later. It is left out of core dumps and of forked children.
    """

    def __init__(
        self, shape: ExtentShape, root: Path = Path("/"), register: Register | None = None
    ) -> None:
        """Allocate. Raises :class:`NotEnoughMemory`, before allocating where it can be known.

        ``root`` is where the bounds of memory are read; ``register`` is told of the memory.
        """
        memory.require(shape.size_bytes, root)
        self.shape = shape
        try:
            self._descriptor = os.memfd_create(
                f"kvstore-extent-{shape.extent_id}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
            )
            try:
                self._mapping: mmap.mmap | None = _map(self._descriptor, shape.size_bytes)
            except BaseException:
                os.close(self._descriptor)
                raise
        except OSError as error:
            raise _refusal(shape.size_bytes, error, root) from error
        self._unregister: Callable[[], None] | None = None
        if register is not None:
            try:
                self._unregister = register(memoryview(self._mapping), shape.slot_bytes)
            except BaseException:
                self.close()
                raise

    def describe(self) -> ExtentDescription:
        """Return what another process needs to map the memory, until ``close``."""
        export = HostExport(self._descriptor, self.shape.size_bytes)
        return ExtentDescription(self.shape, 0, export)

    def read(self, index: int) -> memoryview | None:
        """Return a slot's bytes, in place, or None once it is closed."""
        view = self.place(index)
        return None if view is None else view.toreadonly()

    def reader(self) -> SlotReader:
        """Return what reads slots in place, a third of what ``read`` takes for each."""
        view, size = self._view(), self.shape.slot_bytes
        if view is None:
            return self.read
        readable = view.toreadonly()
        return lambda index: readable[index * size : (index + 1) * size]

    def place(self, index: int) -> memoryview | None:
        """Return a slot's bytes, in place, to be written; None once it is closed."""
        view, size = self._view(), self.shape.slot_bytes
        return None if view is None else view[index * size : (index + 1) * size]

    def _view(self) -> memoryview | None:
        mapping = self._mapping
        if mapping is None:
            return None
        try:
            return memoryview(mapping)
        except ValueError:  # closed since, by another thread
            return None

    def fill(self, index: int, value: int) -> None:
        """Write one value, of a byte, into all bytes of a slot."""
        mapping, size = self._mapping, self.shape.slot_bytes
        if mapping is not None:
            mapping[index * size : (index + 1) * size] = bytes([value]) * size

    def give_back(self) -> bool:
        """Do as ``close``: the kernel has it once the last mapping is gone."""
        self.close()
        return True

    def close(self) -> None:
        """Unmap, and close the descriptor. Idempotent.

        What was read is unmapped once nobody looks at it any more.
        """
        mapping, self._mapping = self._mapping, None
        if mapping is None:
            return
        if self._unregister is not None:
            self._unregister()
        with suppress(BufferError):
            mapping.close()
        os.close(self._descriptor)


class HostMemory:
    """The machine's memory as a source of extents. ``root`` is where its bounds are read.

    ``register`` is told of each extent's memory, and gives back what undoes that.
    """

    granularity = 1

    def __init__(self, root: Path = Path("/"), register: Register | None = None) -> None:
        self._root = root
        self._register = register

    def warn_beyond(self, budget_bytes: int, tier: int = 1) -> None:
        """Log each bound that has less than a tier's budget now; what is refused then may come."""
        for bound in memory.bounds(self._root):
            if budget_bytes > bound.available_bytes:
                event = "tier1_bytes_beyond_memory" if tier == 1 else "tier2_bytes_beyond_memory"
                fields = {f"tier{tier}_bytes": budget_bytes} | bound._asdict()
                log.warning(event, **fields)

    def answers(self) -> bool:
        """Return True."""
        return True

    def allocate(self, shape: ExtentShape) -> HostExtent:
        """Allocate an extent; raises :class:`NotEnoughMemory`."""
        return HostExtent(shape, self._root, self._register)


def _map(descriptor: int, size_bytes: int) -> mmap.mmap:
    """Give the file its size and all its memory, seal it, and map it."""
    os.ftruncate(descriptor, size_bytes)
    for start in range(0, size_bytes, STEP_BYTES):
        os.posix_fallocate(descriptor, start, min(STEP_BYTES, size_bytes - start))
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    mapping = mmap.mmap(descriptor, size_bytes)
    mapping.madvise(mmap.MADV_DONTFORK)
    mapping.madvise(mmap.MADV_DONTDUMP)
    return mapping


def _refusal(size_bytes: int, error: OSError, root: Path) -> NotEnoughMemory:
    """Say that the kernel refused, however much there seemed to be a moment ago."""
    available = min((each.available_bytes for each in memory.bounds(root)), default=0)
    return NotEnoughMemory(
        f"the kernel refused the memory ({error.strerror})",
        requested_bytes=size_bytes,
        available_bytes=available,
    )
