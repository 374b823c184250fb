"""Host memory that workers map: a sealed memfd for each extent."""

import mmap
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import accumulate
from pathlib import Path
from typing import Self

import structlog

from kvstore.storage.cuda.registration import Register, Registration, pieces
from kvstore.storage.errors import ExtentUnusable
from kvstore.storage.extent import ExtentDescription, ExtentShape, HostExport, SlotReader
from kvstore.storage.held_memory import HeldMemory, data_name
from kvstore.storage.host import numa
from kvstore.storage.host.hugepages import Hugepages, transparent_allowed
from kvstore.storage.host.machine_limits import machine_bounds, processor_count
from kvstore.storage.host.memfd import (
    PLAIN,
    HostTerms,
    allocate,
    fill,
    inherited_size,
    make_memfd,
    map_memfd,
)
from kvstore.storage.host.populate import MOST_THREADS

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

ADVICE = "set /sys/kernel/mm/transparent_hugepage/shmem_enabled to advise"


class HostExtent:
    """One extent of host memory: allocated whole, zeroed, and mapped by this process too.

    Every page is allocated before the extent is used, so no later write to a slot can fail. Core
    dumps and forked children do not include the memory.
    """

    def __init__(self, shape: ExtentShape, descriptor: int, mapping: mmap.mmap) -> None:
        """Owns the descriptor and its mapping. Call ``allocate`` or ``restore``."""
        self.shape = shape
        self._export = HostExport(descriptor, len(mapping))
        self._mapping: mmap.mmap | None = mapping
        self._registration: Registration | None = None

    @classmethod
    def allocate(
        cls,
        shape: ExtentShape,
        terms: HostTerms = PLAIN,
        register: Register | None = None,
        held: HeldMemory | None = None,
    ) -> Self:
        """Returns a new extent, which is deposited.

        Raises :class:`NotEnoughMemory`, if possible before it allocates. Calls ``register`` for
        each piece of the memory while the next piece is filled.
        """
        held = HeldMemory() if held is None else held
        # A carrier knows ordinary pages only, and registration would wait for all of them.
        by_carrier = held.outlives and terms.is_plain and register is None
        name, size = data_name(shape.extent_id), terms.rounded(shape.size_bytes)
        try:
            with ExitStack() as undo:
                if by_carrier:
                    descriptor = held.make(name, size)
                else:
                    terms.require(shape.size_bytes)
                    descriptor = make_memfd(_name_here(shape.extent_id), size, terms)
                undo.callback(os.close, descriptor)
                undo.callback(held.forget, name)
                extent = cls(shape, descriptor, map_memfd(descriptor, size, terms))
                undo.callback(extent._unmap)
                extent._fill(terms, register, allocated=by_carrier)
                if not by_carrier:
                    held.keep(name, descriptor)
                undo.pop_all()
        except OSError as error:
            raise terms.refusal(shape.size_bytes, error) from error
        return extent

    @classmethod
    def restore(cls, shape: ExtentShape, descriptor: int, register: Register | None = None) -> Self:
        """Returns the extent that a former process of the store deposited.

        Its bytes stay as they are. The descriptor belongs to the extent. Raises
        :class:`ExtentUnusable`, and then it is the caller's. The extent is registered in the
        background: copies of the other pieces are slower meanwhile.
        """
        sizes = {HostTerms(hugepages=each).rounded(shape.size_bytes) for each in Hugepages}
        names = data_name(shape.extent_id), _name_here(shape.extent_id)
        size = inherited_size(descriptor, sizes, names)
        try:
            mapping = map_memfd(descriptor, size, PLAIN)
        except OSError as error:
            raise ExtentUnusable(f"extent {shape.extent_id} cannot be mapped: {error}") from error
        extent = cls(shape, descriptor, mapping)
        if register is not None:
            extent._registration = Registration(register)
            with memoryview(mapping) as memory:
                for start, length in _spans(shape):
                    extent._registration.begin(memory[start : start + length])
            extent._registration.finish_later()
        return extent

    def _fill(self, terms: HostTerms, register: Register | None, *, allocated: bool) -> None:
        mapping, descriptor = self._mapping, self._export.descriptor
        assert mapping is not None  # nobody closed it yet
        if not terms.populates(registered=register is not None):
            if not allocated:
                allocate(descriptor, 0, len(mapping))
            return
        if register is None:
            fill(descriptor, mapping, 0, len(mapping), terms.threads)
            return
        self._registration = Registration(register)
        with memoryview(mapping) as memory:
            for start, size in _spans(self.shape):
                fill(descriptor, mapping, start, size, terms.threads)
                self._registration.begin(memory[start : start + size])
        self._registration.finish()

    def describe(self) -> ExtentDescription:
        """Returns the description with which other processes map the memory, until ``close``."""
        return ExtentDescription(self.shape, 0, self._export)

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
        if self._unmap():
            os.close(self._export.descriptor)

    def _unmap(self) -> bool:
        """Unregisters and unmaps the memory. Returns False if that was done before."""
        mapping, self._mapping = self._mapping, None
        if mapping is None:
            return False
        if self._registration is not None:
            self._registration.undo()
        with suppress(BufferError):
            mapping.close()
        return True


def _name_here(extent_id: int) -> str:
    """Returns the kernel's name of memory that this process makes."""
    return f"kvstore-extent-{extent_id}"


def _spans(shape: ExtentShape) -> Iterator[tuple[int, int]]:
    """Yields the begin and the size of each piece that is registered by one call."""
    sizes = pieces(shape.size_bytes, shape.slot_bytes)
    return zip(accumulate(sizes, initial=0), sizes, strict=False)


class HostMemory:
    """The machine's memory as a source of extents.

    ``register`` is as in :meth:`HostExtent.allocate`. The default of ``threads`` is the number of
    processors that the process may use, at most :data:`MOST_THREADS`. If the kernel refuses
    ``numa_node``, this logs it and does not use the node. Bounds are read below ``root``. Extents
    are deposited in ``held``, by default nowhere.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        register: Register | None = None,
        *,
        hugepages: Hugepages = Hugepages.OFF,
        numa_node: int | None = None,
        threads: int | None = None,
        held: HeldMemory | None = None,
    ) -> None:
        self._register = register
        self.held = HeldMemory() if held is None else held
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
        """Logs each bound that is now less than a tier's budget. More may be available later.

        A carrier's bounds are not known here, except the machine's.
        """
        plain = self._terms.is_plain and self._register is None
        elsewhere = plain and self.held.paid_elsewhere
        bounds = machine_bounds(self._terms.root) if elsewhere else self._terms.bounds()
        for bound in bounds:
            if budget_bytes > bound.available_bytes:
                event = "tier1_bytes_beyond_memory" if tier == 1 else "tier2_bytes_beyond_memory"
                fields = {f"tier{tier}_bytes": budget_bytes} | bound._asdict()
                log.warning(event, **fields)

    def answers(self) -> bool:
        """Returns True."""
        return True

    def allocate(self, shape: ExtentShape) -> HostExtent:
        """Allocates an extent; raises :class:`NotEnoughMemory`."""
        return HostExtent.allocate(shape, self._terms, self._register, self.held)

    def restore(self, shape: ExtentShape, descriptor: int) -> HostExtent:
        """Returns an extent of a former process; raises :class:`ExtentUnusable`."""
        return HostExtent.restore(shape, descriptor, self._register)
