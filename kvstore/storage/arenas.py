"""All extents' memory of one tier, within its budget."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from threading import Lock

import structlog

from kvstore.core.values.slots import INDEX_BITS, INDEX_MASK
from kvstore.storage.copies import Outcome, SlotBytes, copy_all
from kvstore.storage.errors import BudgetExhausted, CudaFailed
from kvstore.storage.extent import (
    ExtentDescription,
    ExtentMemory,
    ExtentShape,
    MemorySource,
    SlotReader,
)
from kvstore.storage.generation_table import GenerationTable

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Slots of one extent: their tables take some 50 bytes each, which the budget does not count,
# and are made while the store waits (20 ms for as many).
MAX_SLOTS = 1 << 20
# What a slot given back is filled with for debugging: in any type of number a large one and no
# NaN, since what a mask multiplies by zero has to be a number.
POISON = 0xDB


@dataclass(frozen=True)
class Extent:
    """One extent's memory, and the table of its slots' generations."""

    memory: ExtentMemory
    generation_table: GenerationTable

    @property
    def shape(self) -> ExtentShape:
        """Which extent it is, and how its bytes are cut."""
        return self.memory.shape

    def describe(self) -> ExtentDescription:
        """Returns what another process needs to reach both, until ``close``."""
        return replace(self.memory.describe(), generation_table=self.generation_table.describe())

    def give_back(self) -> bool:
        """Gives back both, which no process maps; False where the memory is in use still."""
        self.generation_table.close()
        return self.memory.give_back()

    def close(self) -> None:
        """Gives both up; idempotent."""
        self.memory.close()
        self.generation_table.close()


class Arenas:
    """The owner of a tier's memory. Thread-safe.

    ``budget_bytes`` bounds all extents together, as the source rounds them; an
    extent has ``extent_bytes``, rounded down to whole slots, or less where the
    budget ends, or one slot where a slot is larger than that. Extents
    are named by ``extent_ids``, none twice, counted from 1 if not given.
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
        self._extent_ids = count(1) if extent_ids is None else extent_ids

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the budget that are in use, or being allocated."""
        with self._mutex:
            return self._allocated_bytes

    def has_room(self, slot_bytes: int) -> bool:
        """Returns whether the budget has room for an extent of at least one slot."""
        return self.room(slot_bytes) > 0

    def room(self, slot_bytes: int) -> int:
        """Returns how many slots the rest of the budget comes to."""
        return (self.budget_bytes - self.allocated_bytes) // slot_bytes

    def slots_in_extent(self, slot_bytes: int) -> int:
        """Returns how many slots an extent has where the budget does not cut it short."""
        return min(max(self.extent_bytes // slot_bytes, 1), MAX_SLOTS)

    def allocate(self, arena_id: int, slot_bytes: int, *, max_slots: int | None = None) -> Extent:
        """Allocates the next extent of an arena. Takes up to half a second a GiB.

        The extent has at most ``max_slots`` slots. Raises :class:`BudgetExhausted` or
        :class:`NotEnoughMemory`, and then leaves the budget as it was.
        """
        most = MAX_SLOTS if max_slots is None else max_slots
        shape = self._claim(arena_id, slot_bytes, most)
        try:
            extent = self._make(shape)
        except BaseException:
            with self._mutex:
                self._allocated_bytes -= self._taken(shape)
            raise
        with self._mutex:
            self._extents[shape.extent_id] = extent
        return extent

    def destroy(self, extent_id: int) -> ExtentShape:
        """Gives an extent's memory up; its bytes return to the budget. Takes milliseconds.

        Nobody may reach it any more, and no view of it may be alive here. What a
        device does not take back stays out of the budget.
        """
        with self._mutex:
            extent = self._extents.pop(extent_id)
        if extent.give_back():
            with self._mutex:
                self._allocated_bytes -= self._taken(extent.shape)
        return extent.shape

    def describe(self, extent_ids: Iterable[int]) -> list[ExtentDescription]:
        """Returns what other processes need to reach the given extents."""
        with self._mutex:
            return [self._extents[each].describe() for each in extent_ids]

    def read(self, slot: int) -> memoryview | None:
        """Returns the bytes of a slot as they are now, of the host in place and of a device copied.

        ``slot`` is core's number of it. None where there is no such extent any more.
        Whoever reads sees to it that nobody else is given the slot meanwhile, or finds
        out afterwards. Raises :class:`CudaFailed` where a device cannot be read.
        """
        extent = self._extents.get(slot >> INDEX_BITS)
        return None if extent is None else extent.memory.read(slot & INDEX_MASK)

    def reader(self, extent_id: int) -> SlotReader | None:
        """Returns what reads an extent's slots, by their indexes, as :meth:`read` does."""
        extent = self._extents.get(extent_id)
        return None if extent is None else extent.memory.reader()

    def place(self, slot: int) -> SlotBytes | None:
        """Return where a slot's bytes are, for ``copy_all``; None where there is no such extent."""
        extent = self._extents.get(slot >> INDEX_BITS)
        return None if extent is None else extent.memory.place(slot & INDEX_MASK)

    def write_all(self, pages: Iterable[tuple[int, memoryview]]) -> list[Outcome]:
        """Writes the bytes of whole slots, and says of each why it was not written, or None.

        Nobody else may use the slots meanwhile. On a device all are begun, and waited
        for once.
        """
        return copy_all((content, self.place(slot)) for slot, content in pages)

    def poison(self, slots: Iterable[int]) -> None:
        """Writes :data:`POISON` into slots that nobody uses any more. A refusal is logged."""
        for slot in slots:
            extent = self._extents.get(slot >> INDEX_BITS)
            if extent is not None:
                try:
                    extent.memory.fill(slot & INDEX_MASK, POISON)
                except CudaFailed as error:
                    log.warning("slot_not_poisoned", slot=slot, why=str(error))

    def close(self) -> None:
        """Gives all memory up; workers that mapped it keep theirs alive."""
        with self._mutex:
            while self._extents:
                _, extent = self._extents.popitem()
                extent.close()
            self._allocated_bytes = 0

    def _claim(self, arena_id: int, slot_bytes: int, max_slots: int) -> ExtentShape:
        """Takes an extent's bytes out of the budget, and its id out of the numbers."""
        with self._mutex:
            remaining = min(self.budget_bytes - self._allocated_bytes, max_slots * slot_bytes)
            if remaining < slot_bytes:
                raise BudgetExhausted(
                    "the budget is spent", requested_bytes=slot_bytes, available_bytes=remaining
                )
            slot_count = min(self.slots_in_extent(slot_bytes), remaining // slot_bytes)
            extent_id = next(self._extent_ids)
            shape = ExtentShape(extent_id, arena_id, self.tier, slot_count, slot_bytes)
            self._allocated_bytes += self._taken(shape)
            return shape

    def _make(self, shape: ExtentShape) -> Extent:
        table = GenerationTable(shape.extent_id, shape.slot_count)
        try:
            return Extent(self.source.allocate(shape), table)
        except BaseException:
            table.close()
            raise

    def _taken(self, shape: ExtentShape) -> int:
        """Returns what an extent takes of the budget."""
        granularity = self.source.granularity
        return -(-shape.size_bytes // granularity) * granularity
