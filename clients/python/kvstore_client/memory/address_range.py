"""One range of addresses for each arena, with its host extents side by side."""

import ctypes
import errno
import logging
import mmap
import os
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from kvstore.v1 import types_pb2
from kvstore_client.config import ContiguousMemory
from kvstore_client.memory.mapped_extent import UntrustedExtent
from kvstore_client.memory.shared_memory import (
    Unregister,
    map_into,
    release_addresses,
    reserve_addresses,
    reserve_again,
    view_mapped,
)
from kvstore_client.values.page_runs import DatedRun, PageRef, SlotRun

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

# The base is a multiple of this, as every `Extent.arena_offset` is: memory of hugetlbfs cannot be
# mapped elsewhere, and other memory gets no transparent large pages elsewhere.
UNIT = 2 << 20
# The default of `reserved_bytes`. An arena has no more than the machine's memory. Its extents may
# be shorter than the room that the store leaves for each.
MEMORY_MULTIPLE = 4
LEAST_RESERVED = 1 << 40

_logger = logging.getLogger(__name__)


class RangeExtent(NamedTuple):
    """An extent in an address range.

    Slot ``i`` is row ``first_row + i``. ``size_bytes`` from ``address`` on are mapped.
    """

    extent_id: int
    first_row: int
    slot_count: int
    address: int
    size_bytes: int


class AddressRange:
    """Addresses that one session reserved for an arena, with the arena's extents side by side.

    Row ``r`` is the ``row_bytes`` from ``base + r * row_bytes`` on. Each slot has one row, which
    is the same in all processes of the store's clients. It is the slot's only while the extent
    is mapped: rows of an extent that the store took back become another extent's. Rows between
    extents have no memory.

    A row MUST NOT be touched unless its page is held: the touch of one without memory is
    SIGSEGV. Held pages stay mapped, also after the store died. The addresses stay reserved
    while this object, one of its extents or a view of them exists. A forked child has none of
    them.

    Any thread may use it; one thread at a time maps. Raises ``OSError`` if the addresses cannot
    be reserved.
    """

    def __init__(self, arena_id: int, row_bytes: int, options: ContiguousMemory) -> None:
        wanted = options.reserved_bytes or default_reserved_bytes()
        size = -(-wanted // UNIT) * UNIT
        start = reserve_addresses(size + UNIT)
        self.arena_id = arena_id
        self.row_bytes = row_bytes
        self.base = -(-start // UNIT) * UNIT
        self.reserved_bytes = size
        # Views of the whole range keep this array alive, and the array keeps the addresses.
        self._whole = (ctypes.c_ubyte * size).from_address(self.base)
        self._release = weakref.finalize(self._whole, _release, start, size + UNIT, os.getpid())
        # At exit the kernel unmaps, after the last thread that may still read.
        self._release.atexit = False
        self._extents: dict[int, RangeExtent] = {}
        # Bytes by offset of all extents, also of those whose mapping or unmapping is under way.
        self._places: dict[int, int] = {}
        self._broken = False

    @property
    def row_count(self) -> int:
        """The number of rows, with and without memory."""
        return self.reserved_bytes // self.row_bytes

    @property
    def extents(self) -> dict[int, RangeExtent]:
        """The mapped extents by id, as of now."""
        return self._extents.copy()

    def row(self, page: PageRef) -> int:
        """Returns a page's row. Raises ``KeyError`` for an extent that is not mapped here.

        Raises ``IndexError`` for a slot that the extent does not have.
        """
        extent = self._extents[page.extent_id]
        if not 0 <= page.slot < extent.slot_count:
            raise _no_slot(extent, page.slot)
        return extent.first_row + page.slot

    def rows(self, runs: Iterable[SlotRun | DatedRun]) -> "npt.NDArray[np.int64]":
        """Returns the row of each page of ``runs`` in their order, such as ``Pages.runs``.

        Takes about 20 us, 0.3 us a run and 0.04 us a page. Loads numpy. Raises as :meth:`row`
        does.
        """
        import numpy as np  # noqa: PLC0415  # on demand: clients without numpy use `row`

        runs = list(runs)
        extents = [self._extents[run.extent_id] for run in runs]
        lengths = np.array([len(run.slots) for run in runs], np.int64)
        every_slot = chain.from_iterable(run.slots for run in runs)
        slots = np.fromiter(every_slot, np.int64, int(lengths.sum()))
        counts = np.repeat(np.array([each.slot_count for each in extents], np.int64), lengths)
        wrong = np.flatnonzero((slots < 0) | (slots >= counts))
        if len(wrong):
            run = int(np.searchsorted(lengths.cumsum(), wrong[0], side="right"))
            raise _no_slot(extents[run], int(slots[wrong[0]]))
        first_rows = np.array([each.first_row for each in extents], np.int64)
        rows: npt.NDArray[np.int64] = slots + np.repeat(first_rows, lengths)
        return rows

    def page(self, row: int) -> PageRef:
        """Returns the page in a row. Raises ``IndexError`` if the row has no memory."""
        for extent in self.extents.values():
            if 0 <= row - extent.first_row < extent.slot_count:
                return PageRef(extent.extent_id, row - extent.first_row)
        raise IndexError(f"row {row} is in no mapped extent of arena {self.arena_id}")

    def address(self, row: int) -> int:
        """Returns the address of a row's first byte, without a check for memory there."""
        return self.base + row * self.row_bytes

    def view(self) -> memoryview:
        """Returns the whole range as writable bytes, without touching them.

        It keeps the addresses reserved, and no extent mapped.
        """
        return memoryview(self._whole).cast("B")

    def tensor(self) -> "torch.Tensor":
        """Returns the whole range as one row of uint8, as :meth:`view` does. Loads torch."""
        import torch  # noqa: PLC0415  # on demand: clients without torch use views

        return torch.frombuffer(self.view(), dtype=torch.uint8)

    def map(
        self,
        extent: types_pb2.Extent,
        descriptor: int,
        *,
        unmapped: Callable[[], None] | None = None,
        register: Callable[[int], Unregister] | None = None,
    ) -> memoryview:
        """Maps an extent's memory at its place and returns its bytes.

        Calls ``register`` and ``unmapped`` as :func:`map_memory` does. Each view of the result
        keeps the extent mapped. After the last one is dropped, the memory is unregistered and then
        unmapped, and its addresses stay reserved. Until then no other extent is mapped there.

        The descriptor stays the caller's, who checked it. Raises :class:`UntrustedExtent` if the
        place is not this extent's, and ``OSError`` if the extent cannot be mapped here. If
        ``register`` raises, the memory is unmapped and that error is raised.
        """
        place = self._place_of(extent)
        self._places[extent.arena_offset] = place.size_bytes
        try:
            map_into(place.address, descriptor, place.size_bytes)
        except OSError:
            self._break()
            raise
        # It keeps this object, and so the reservation.
        unmap = partial(self._empty, extent.arena_offset, place)
        view = view_mapped(
            place.address,
            place.size_bytes,
            unmap,
            dropped=partial(self._extents.pop, place.extent_id),
            unmapped=unmapped,
            register=register,
        )
        self._extents[place.extent_id] = place
        return view

    def _place_of(self, extent: types_pb2.Extent) -> RangeExtent:
        """Returns where an extent belongs. Raises as :meth:`map` does."""
        size, offset = extent.host.size_bytes, extent.arena_offset
        name = f"extent {extent.extent_id}"
        if extent.slot_bytes != self.row_bytes:
            raise UntrustedExtent(
                f"{name} has slots of {extent.slot_bytes} bytes, not {self.row_bytes} as its arena"
            )
        if offset % self.row_bytes or offset % UNIT:
            raise UntrustedExtent(f"{name} is at byte {offset} of its arena, where none begins")
        # A copy, because other threads unmap.
        taken = list(self._places.items())
        if any(offset < begin + length and begin < offset + size for begin, length in taken):
            raise UntrustedExtent(f"{name} is at byte {offset} of its arena, where another is")
        if extent.offset:
            raise OSError(errno.ENOTSUP, f"slots begin {extent.offset} bytes into the memory")
        if offset + size > self.reserved_bytes:
            raise OSError(
                errno.ENOMEM,
                f"it ends at byte {offset + size} of its arena, and this process reserved "
                f"{self.reserved_bytes}: set ContiguousMemory.reserved_bytes to more",
            )
        if self._broken:
            raise OSError(errno.ENOTRECOVERABLE, "an earlier mapping into the range failed")
        first_row = offset // self.row_bytes
        return RangeExtent(extent.extent_id, first_row, extent.slot_count, self.base + offset, size)

    def _empty(self, offset: int, place: RangeExtent) -> bool:
        """Unmaps an extent's memory; returns whether that succeeded.

        If it fails, the store keeps the extent for this process until its end.
        """
        try:
            reserve_again(place.address, place.size_bytes)
        except OSError as error:
            _logger.warning("extent_not_unmapped", extra={"reason": str(error)})
            self._break()
            return False
        del self._places[offset]
        return True

    def _break(self) -> None:
        """Ends the use of the range for further extents.

        A mapping of another part of the program may be among its addresses.
        """
        self._broken = True
        self._release.detach()


class ArenaRanges:
    """The address ranges of one session, by arena. One thread at a time maps."""

    def __init__(self, options: ContiguousMemory) -> None:
        self._options = options
        self._ranges: dict[int, AddressRange] = {}

    def get(self, arena_id: int) -> AddressRange | None:
        """Returns an arena's range, or None before its first host extent."""
        return self._ranges.get(arena_id)

    def of(self, extent: types_pb2.Extent) -> AddressRange:
        """Returns the range of an extent's arena, and reserves it for the first extent.

        Raises ``OSError`` if the addresses cannot be reserved, or if the store does not state the
        extent's place.
        """
        if not extent.HasField("arena_offset"):
            raise OSError(
                errno.ENOTSUP,
                "the store is too old for ClientConfig.contiguous_memory: upgrade the store",
            )
        found = self._ranges.get(extent.arena_id)
        if found is None:
            found = AddressRange(extent.arena_id, extent.slot_bytes, self._options)
            self._ranges[extent.arena_id] = found
        return found


def default_reserved_bytes() -> int:
    """Returns the bytes of addresses that are reserved for an arena by default."""
    memory = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
    return max(MEMORY_MULTIPLE * memory, LEAST_RESERVED)


def _no_slot(extent: RangeExtent, slot: int) -> IndexError:
    return IndexError(f"extent {extent.extent_id} has {extent.slot_count} slots, none is {slot}")


def _release(address: int, size: int, pid: int) -> None:
    if os.getpid() == pid:
        release_addresses(address, size)
