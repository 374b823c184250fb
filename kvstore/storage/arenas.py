"""The memory of one tier's extents, within its budget."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from threading import Lock

import structlog

from kvstore.core.values.slots import INDEX_BITS, INDEX_MASK
from kvstore.holder.holder_process import close_all
from kvstore.storage.errors import BudgetExhausted, CudaFailed, ExtentUnusable
from kvstore.storage.extent import (
    ExtentDescription,
    ExtentMemory,
    ExtentShape,
    MemorySource,
    SlotReader,
)
from kvstore.storage.generation_table import GenerationTable
from kvstore.storage.held_memory import data_name, table_name
from kvstore.storage.slot_copies import Outcome, SlotBytes, copy_all

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Slots of one extent: a slot's tables take some 50 bytes, which the budget does not count. The
# store waits 20 ms while the tables of this many slots are made.
MAX_SLOTS = 1 << 20
# The fill of freed slots, for debugging. It is a large number in every type and never NaN, since a
# mask multiplies by zero.
POISON = 0xDB
# Extents begin at multiples of this in their arena's range of addresses: the kernel's large page,
# which memory of hugetlbfs has to be mapped at.
OFFSET_UNIT = 2 << 20


@dataclass(frozen=True)
class Extent:
    """One extent's memory, and the table of its slots' generations."""

    memory: ExtentMemory
    generation_table: GenerationTable

    @property
    def shape(self) -> ExtentShape:
        """The extent's id, and the size and number of its slots."""
        return self.memory.shape

    def describe(self) -> ExtentDescription:
        """Returns what another process needs to reach both, until ``close``."""
        return replace(self.memory.describe(), generation_table=self.generation_table.describe())

    def give_back(self) -> bool:
        """Frees both if no process maps them. Returns False if the memory is still in use."""
        self.generation_table.close()
        return self.memory.give_back()

    def close(self) -> None:
        """Closes both; idempotent."""
        self.memory.close()
        self.generation_table.close()


class Arenas:
    """The owner of a tier's memory. Thread-safe.

    ``budget_bytes`` bounds all extents together, each rounded up by the source. An extent has
    ``extent_bytes``, rounded down to whole slots. It has less at the end of the budget, and one
    slot if a slot is larger. ``extent_ids`` names new extents, from 1 by default: each id once, and
    none that is restored. Extents are deposited where ``source`` says.
    """

    def __init__(
        self,
        *,
        budget_bytes: int,
        extent_bytes: int,
        source: MemorySource,
        extent_ids: Iterator[int] | None = None,
        tier: int = 1,
    ) -> None:
        self.tier = tier
        self.budget_bytes = budget_bytes // source.granularity * source.granularity
        self.extent_bytes = extent_bytes
        self.source = source
        self._mutex = Lock()
        self._extents: dict[int, Extent] = {}
        self._allocated_bytes = 0
        # Of the budget, but taken by others.
        self._withheld_bytes = 0
        # The extents in use, by arena: where each begins, and where it ends.
        self._spans: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self._extent_ids = count(1) if extent_ids is None else extent_ids

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the budget that are allocated, or being allocated."""
        with self._mutex:
            return self._allocated_bytes

    def has_room(self, slot_bytes: int) -> bool:
        """Returns whether the budget has room for an extent of at least one slot."""
        return self.room(slot_bytes) > 0

    def room(self, slot_bytes: int) -> int:
        """Returns the number of slots that the rest of the budget has room for."""
        with self._mutex:
            return max(self._remaining(), 0) // slot_bytes

    def withhold(self, size_bytes: int) -> bool:
        """Allocates so many bytes less than the budget. Returns if they are less than before."""
        with self._mutex:
            before, self._withheld_bytes = self._withheld_bytes, size_bytes
        return size_bytes < before

    def _remaining(self) -> int:
        """Returns the bytes that may be allocated still, or a negative number."""
        return self.budget_bytes - self._allocated_bytes - self._withheld_bytes

    def slots_in_extent(self, slot_bytes: int) -> int:
        """Returns the number of slots of an extent that the budget does not cut short."""
        return min(max(self.extent_bytes // slot_bytes, 1), MAX_SLOTS)

    def allocate(self, arena_id: int, slot_bytes: int, *, max_slots: int | None = None) -> Extent:
        """Allocates the next extent of an arena. Takes up to half a second a GiB.

        The extent has at most ``max_slots`` slots. Raises :class:`BudgetExhausted` or
        :class:`NotEnoughMemory`, and leaves the budget unchanged.
        """
        most = MAX_SLOTS if max_slots is None else max_slots
        shape = self._claim(arena_id, slot_bytes, most)
        try:
            extent = self._make(shape)
        except BaseException:
            self._return(shape)
            raise
        with self._mutex:
            self._extents[shape.extent_id] = extent
        return extent

    def restore(self, shape: ExtentShape, data: int, generations: int) -> Extent:
        """Puts an extent back that a former process deposited, with its bytes and generations.

        The descriptors belong to the extent from now on. Raises :class:`BudgetExhausted` or
        :class:`ExtentUnusable`, and then they are closed.
        """
        with ExitStack() as undo:
            undo.callback(close_all, (data, generations))
            with self._mutex:
                self._require_place(shape)
                self._take(shape)
            undo.callback(self._return, shape)
            table = GenerationTable.restore(shape.extent_id, shape.slot_count, generations)
            extent = Extent(self.source.restore(shape, data), table)
            undo.pop_all()
        with self._mutex:
            self._extents[shape.extent_id] = extent
        return extent

    def destroy(self, extent_id: int) -> ExtentShape:
        """Frees an extent's memory and returns its bytes to the budget. Takes milliseconds.

        No process may use it any more, and no view of it may exist here. Memory that a device
        does not free stays out of the budget.
        """
        with self._mutex:
            extent = self._extents.pop(extent_id)
        self.source.held.forget(data_name(extent_id), table_name(extent_id))
        shape, freed = extent.shape, extent.give_back()
        with self._mutex:
            self._spans[shape.arena_id].pop(shape.arena_offset, None)
            if freed:
                self._allocated_bytes -= self._taken(shape)
        return shape

    def describe(self, extent_ids: Iterable[int]) -> list[ExtentDescription]:
        """Returns the descriptions with which other processes map the given extents."""
        with self._mutex:
            return [self._extents[each].describe() for each in extent_ids]

    def read(self, slot: int) -> memoryview | None:
        """Returns a slot's current bytes: in place for host memory, a copy for a device.

        ``slot`` is the core's number. Returns None if the extent no longer exists. The caller keeps
        others from using the slot meanwhile, or checks afterwards. Raises :class:`CudaFailed` if
        the device cannot be read.
        """
        extent = self._extents.get(slot >> INDEX_BITS)
        return None if extent is None else extent.memory.read(slot & INDEX_MASK)

    def reader(self, extent_id: int) -> SlotReader | None:
        """Returns a function that reads an extent's slots by index, as :meth:`read` does."""
        extent = self._extents.get(extent_id)
        return None if extent is None else extent.memory.reader()

    def place(self, slot: int) -> SlotBytes | None:
        """Returns a slot's place for ``copy_all``; None if the extent no longer exists."""
        extent = self._extents.get(slot >> INDEX_BITS)
        return None if extent is None else extent.memory.place(slot & INDEX_MASK)

    def write_all(self, pages: Iterable[tuple[int, memoryview]]) -> list[Outcome]:
        """Writes whole slots. Returns each one's error, or None.

        No other thread may use the slots meanwhile. A device gets all writes at once, and the call
        waits once for all of them.
        """
        return copy_all((content, self.place(slot)) for slot, content in pages)

    def poison(self, slots: Iterable[int]) -> None:
        """Writes :data:`POISON` into unused slots. Logs a refusal."""
        for slot in slots:
            extent = self._extents.get(slot >> INDEX_BITS)
            if extent is not None:
                try:
                    extent.memory.fill(slot & INDEX_MASK, POISON)
                except CudaFailed as error:
                    log.warning("slot_not_poisoned", slot=slot, why=str(error))

    def close(self) -> None:
        """Frees all memory that is not deposited; workers that mapped it keep theirs."""
        with self._mutex:
            while self._extents:
                _, extent = self._extents.popitem()
                extent.close()
            self._allocated_bytes = 0
            self._spans.clear()

    def _claim(self, arena_id: int, slot_bytes: int, max_slots: int) -> ExtentShape:
        """Takes an extent's bytes from the budget, and its id from the numbers."""
        with self._mutex:
            remaining = min(self._remaining(), max_slots * slot_bytes)
            if remaining < slot_bytes:
                raise BudgetExhausted(
                    "the budget is spent", requested_bytes=slot_bytes, available_bytes=remaining
                )
            slot_count = min(self.slots_in_extent(slot_bytes), remaining // slot_bytes)
            extent_id, offset = next(self._extent_ids), self._free_offset(arena_id, slot_bytes)
            shape = ExtentShape(extent_id, arena_id, self.tier, slot_count, slot_bytes, offset)
            self._take(shape)
            return shape

    def _free_offset(self, arena_id: int, slot_bytes: int) -> int:
        """Returns an arena's lowest offset with room for a whole extent, and no other there."""
        unit = math.lcm(slot_bytes, OFFSET_UNIT)
        longest = self.slots_in_extent(slot_bytes) * slot_bytes
        stride = -(-longest // unit) * unit
        # Restored extents may be longer than a stride, or begin within one.
        taken = {
            each
            for begin, end in self._spans[arena_id].items()
            for each in range(begin // stride, -(-end // stride))
        }
        return stride * next(each for each in count() if each not in taken)

    def _require_place(self, shape: ExtentShape) -> None:
        """Raises unless the budget has room for an extent that overlaps with no other."""
        available = self.budget_bytes - self._allocated_bytes
        if self._taken(shape) > available:
            raise BudgetExhausted(
                f"extent {shape.extent_id} does not fit",
                requested_bytes=self._taken(shape),
                available_bytes=available,
            )
        begin, end = shape.arena_offset, shape.arena_offset + shape.size_bytes
        others = self._spans[shape.arena_id].items()
        if shape.extent_id in self._extents or any(
            begin < other_end and other_begin < end for other_begin, other_end in others
        ):
            raise ExtentUnusable(f"extent {shape.extent_id} overlaps with another")

    def _take(self, shape: ExtentShape) -> None:
        """Takes an extent's bytes from the budget, and its place. Called under the mutex."""
        self._allocated_bytes += self._taken(shape)
        end = shape.arena_offset + shape.size_bytes
        self._spans[shape.arena_id][shape.arena_offset] = end

    def _return(self, shape: ExtentShape) -> None:
        """Returns what an extent took that was not made."""
        with self._mutex:
            self._allocated_bytes -= self._taken(shape)
            self._spans[shape.arena_id].pop(shape.arena_offset, None)

    def _make(self, shape: ExtentShape) -> Extent:
        table = GenerationTable.make(shape.extent_id, shape.slot_count, self.source.held)
        try:
            return Extent(self.source.allocate(shape), table)
        except BaseException:
            self.source.held.forget(table_name(shape.extent_id))
            table.close()
            raise

    def _taken(self, shape: ExtentShape) -> int:
        """Returns the bytes of the budget that an extent uses."""
        granularity = self.source.granularity
        return -(-shape.size_bytes // granularity) * granularity
