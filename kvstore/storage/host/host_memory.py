"""Host memory that workers map: a sealed memfd for each extent."""

import mmap
import os
from contextlib import suppress
from pathlib import Path

import structlog

from kvstore.storage.cuda.registration import Register, Registration, pieces
from kvstore.storage.extent import ExtentDescription, ExtentShape, HostExport, SlotReader
from kvstore.storage.host import numa
from kvstore.storage.host.hugepages import Hugepages, transparent_allowed
from kvstore.storage.host.machine_limits import processor_count
from kvstore.storage.host.memfd import PLAIN, HostTerms, allocate, fill, make_memfd, map_memfd
from kvstore.storage.host.populate import MOST_THREADS

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

ADVICE = "set /sys/kernel/mm/transparent_hugepage/shmem_enabled to advise"


class HostExtent:
    """One extent of host memory: allocated whole, zeroed, and mapped by this process too.

    Every page is allocated before the extent is used, so no later write to a slot can fail. Core
    dumps and forked children do not include the memory.
    """

    def __init__(
        self,
        shape: ExtentShape,
        terms: HostTerms = PLAIN,
        register: Register | None = None,
    ) -> None:
        """Allocates. Raises :class:`NotEnoughMemory`, if possible before it allocates.

        Calls ``register`` for each piece of the memory while the next piece is filled.
        """
        terms.require(shape.size_bytes)
        self.shape = shape
        self._registration: Registration | None = None
        self._mapped_bytes = terms.rounded(shape.size_bytes)
        name = f"kvstore-extent-{shape.extent_id}"
        try:
            self._descriptor = make_memfd(name, self._mapped_bytes, terms)
            try:
                mapping = map_memfd(self._descriptor, self._mapped_bytes, terms)
            except BaseException:
                os.close(self._descriptor)
                raise
            self._mapping: mmap.mmap | None = mapping
            try:
                self._fill(mapping, terms, register)
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise terms.refusal(shape.size_bytes, error) from error

    def _fill(self, mapping: mmap.mmap, terms: HostTerms, register: Register | None) -> None:
        if not terms.populates(registered=register is not None):
            allocate(self._descriptor, 0, self._mapped_bytes)
            return
        if register is None:
            fill(self._descriptor, mapping, 0, self._mapped_bytes, terms.threads)
            return
        self._registration = Registration(register)
        start = 0
        with memoryview(mapping) as memory:
            for size in pieces(self.shape.size_bytes, self.shape.slot_bytes):
                fill(self._descriptor, mapping, start, size, terms.threads)
                self._registration.begin(memory[start : start + size])
                start += size
        self._registration.finish()

    def describe(self) -> ExtentDescription:
        """Returns the description with which other processes map the memory, until ``close``."""
        export = HostExport(self._descriptor, self._mapped_bytes)
        return ExtentDescription(self.shape, 0, export)

    def read(self, index: int) -> memoryview | None:
        """Returns a slot's bytes, in place, or None once it is closed."""
        view = self.place(index)
        return None if view is None else view.toreadonly()

    def reader(self) -> SlotReader:
        """Returns a function that reads slots in place, in a third of the time of ``read``."""
        view, size = self._view(), self.shape.slot_bytes
        if view is None:
            return self.read
        readable = view.toreadonly()
        return lambda index: readable[index * size : (index + 1) * size]

    def place(self, index: int) -> memoryview | None:
        """Returns a slot's bytes in place, writable; None once the extent is closed."""
        view, size = self._view(), self.shape.slot_bytes
        return None if view is None else view[index * size : (index + 1) * size]

    def _view(self) -> memoryview | None:
        mapping = self._mapping
        if mapping is None:
            return None
        try:
            return memoryview(mapping)
        except ValueError:  # another thread closed it meanwhile
            return None

    def fill(self, index: int, value: int) -> None:
        """Writes one byte value into all bytes of a slot."""
        mapping, size = self._mapping, self.shape.slot_bytes
        if mapping is not None:
            mapping[index * size : (index + 1) * size] = bytes([value]) * size

    def give_back(self) -> bool:
        """Closes the extent. The kernel frees the memory after the last mapping."""
        self.close()
        return True

    def close(self) -> None:
        """Unmaps the memory and closes the descriptor. Idempotent.

        Views from ``read`` keep the mapping until they are released.
        """
        mapping, self._mapping = self._mapping, None
        if mapping is None:
            return
        if self._registration is not None:
            self._registration.undo()
        with suppress(BufferError):
            mapping.close()
        os.close(self._descriptor)


class HostMemory:
    """The machine's memory as a source of extents.

    ``register`` is as in :class:`HostExtent`. The default of ``threads`` is the number of
    processors that the process may use, at most :data:`MOST_THREADS`. If the kernel refuses
    ``numa_node``, this logs it and does not use the node. Bounds are read below ``root``.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        register: Register | None = None,
        *,
        hugepages: Hugepages = Hugepages.OFF,
        numa_node: int | None = None,
        threads: int | None = None,
    ) -> None:
        self._register = register
        if numa_node is not None:
            try:
                numa.try_node(numa_node)
            except OSError as error:
                log.warning("numa_node_unusable", numa_node=numa_node, why=error.strerror)
                numa_node = None
        if hugepages is Hugepages.TRANSPARENT and not transparent_allowed(root):
            log.warning("transparent_hugepages_off", advice=ADVICE)
        count = threads or min(processor_count(root), MOST_THREADS)
        self._terms = HostTerms(root, hugepages, numa_node, count)

    @property
    def granularity(self) -> int:
        """Bytes; every allocation is rounded up to a multiple of them."""
        return self._terms.hugepages.granularity

    def warn_beyond(self, budget_bytes: int, tier: int = 1) -> None:
        """Logs each bound that is now less than a tier's budget. More may be available later."""
        for bound in self._terms.bounds():
            if budget_bytes > bound.available_bytes:
                event = "tier1_bytes_beyond_memory" if tier == 1 else "tier2_bytes_beyond_memory"
                fields = {f"tier{tier}_bytes": budget_bytes} | bound._asdict()
                log.warning(event, **fields)

    def answers(self) -> bool:
        """Returns True."""
        return True

    def allocate(self, shape: ExtentShape) -> HostExtent:
        """Allocates an extent; raises :class:`NotEnoughMemory`."""
        return HostExtent(shape, self._terms, self._register)
