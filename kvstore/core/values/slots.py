"""Slots: the place of one page each, and the state that it is in.

One integer names a slot, ``extent_id << 32 | index``. A path's slots are therefore a flat
array with eight bytes a page.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Protocol, TypeAlias

INDEX_BITS = 32
INDEX_MASK = (1 << INDEX_BITS) - 1
# Means "no checksum". One page in 2**64 has it as its checksum, and is not verified.
NO_CHECKSUM = 0

# The number of an extent's first slots that ``order`` covers.
ORDERED = 1 << 16

# Slots in prefix order: an array of type code "Q".
Slots: TypeAlias = "array[int]"


class Generations(Protocol):
    """Generations by slot index: an array of type code "Q", or a view of shared memory."""

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, generation: int, /) -> None: ...

    def __iter__(self) -> Iterator[int]: ...


class SlotState(IntEnum):
    """The states of a slot. Every change to FREE adds one to its generation."""

    FREE = 0
    RESERVED = 1
    CACHED = 2
    DETACHED = 3
    MOVING = 4
    QUARANTINED = 5


# Python 3.11 takes 0.2 us to look a member up in its enumeration.
FREE, RESERVED, CACHED = SlotState.FREE, SlotState.RESERVED, SlotState.CACHED


class ExtentSlots:
    """The slots of one extent: their states, generations and checksums, and the free ones.

    Workers read ``generations``, which start at zero. The store writes a slot's generation
    before anybody can reserve the slot again. ``checksums`` are those of the bytes that the
    slots' writers wrote, or ``NO_CHECKSUM``. ``order`` is the bytes of the first slots in
    ascending order, in the encoding of ``Slots``: slots that ascend are a part of it.
    ``arena_offset`` is the byte of slot 0 among the extents of its arena.
    Not thread-safe. Knows nothing of pages, pins or memory.
    """

    __slots__ = (
        "arena_offset",
        "available",
        "checksums",
        "extent_id",
        "generations",
        "order",
        "slot_count",
        "states",
        "tier",
    )

    def __init__(
        self,
        extent_id: int,
        slot_count: int,
        generations: Generations | None = None,
        tier: int = 1,
        arena_offset: int = 0,
    ) -> None:
        self.extent_id = extent_id
        self.tier = tier
        self.arena_offset = arena_offset
        self.slot_count = slot_count
        self.states = bytearray(slot_count)
        self.generations: Generations = (
            array("Q", bytes(8 * slot_count)) if generations is None else generations
        )
        self.checksums = array("Q", bytes(8 * slot_count))
        base = extent_id << INDEX_BITS
        self.order = array("Q", range(base, base + min(slot_count, ORDERED))).tobytes()
        # A stack with the lowest index on top, so that new slots ascend.
        self.available = list(range(slot_count - 1, -1, -1))

    @property
    def is_empty(self) -> bool:
        """True if all slots are FREE."""
        return len(self.available) == self.slot_count

    def take(self, count: int, state: SlotState = RESERVED) -> list[int]:
        """Withdraws ``count`` slots from the free ones and returns them. FREE to ``state``."""
        base = self.extent_id << INDEX_BITS
        split = len(self.available) - count
        taken = self.available[split:]
        del self.available[split:]
        taken.reverse()
        for index in taken:
            self.states[index] = state
        return [base | index for index in taken]


def mark(extents: Mapping[int, ExtentSlots], slots: Slots, state: SlotState) -> None:
    """Sets the state of some slots, to another one than FREE.

    Slots that ascend, as most do that were reserved together, take one step in all.
    """
    if not slots:
        return
    first, count = slots[0], len(slots)
    extent, start = extents[first >> INDEX_BITS], first & INDEX_MASK
    # An array offers its bytes, so this compares without a copy.
    if extent.order.startswith(slots, start * slots.itemsize):
        extent.states[start : start + count] = bytes((state,)) * count
        return
    # Pairs of (index, extent): a step over numbers of half the size costs a third.
    pairs = array("I", slots.tobytes())
    indexes, owners = pairs[0::2], pairs[1::2]
    if owners.count(extent.extent_id) == count:
        states = extent.states
        for index in indexes:
            states[index] = state
        return
    for index, owner in zip(indexes, owners, strict=True):
        extents[owner].states[index] = state


def recycle(extents: Mapping[int, ExtentSlots], slots: Sequence[int]) -> None:
    """Gives slots back: any state to FREE, generation + 1, no checksum."""
    owner = -1
    # From the end, so that the next reservation gets them in ascending order again.
    for slot in reversed(slots):
        if slot >> INDEX_BITS != owner:
            owner = slot >> INDEX_BITS
            extent = extents[owner]
            states, generations = extent.states, extent.generations
            checksums, available = extent.checksums, extent.available
        index = slot & INDEX_MASK
        states[index] = FREE
        generations[index] += 1
        checksums[index] = NO_CHECKSUM
        available.append(index)
