"""Slots: one page's place each, and the state that it is in.

A slot is named by one integer, ``extent_id << 32 | index``, so that a path's
slots are a flat array of eight bytes a page.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Protocol, TypeAlias

INDEX_BITS = 32
INDEX_MASK = (1 << INDEX_BITS) - 1
# One page in 2**64 has this checksum, and is not verified.
NO_CHECKSUM = 0

# Slots of an extent of which ``order`` tells.
ORDERED = 1 << 16

# Slots in prefix order: an array of type code "Q".
Slots: TypeAlias = "array[int]"


class Generations(Protocol):
    """A slot's generation at its index: an array of type code "Q", or a view of shared memory."""

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, generation: int, /) -> None: ...

    def __iter__(self) -> Iterator[int]: ...


class SlotState(IntEnum):
    """Where a slot is in its life. Every way to FREE adds one to its generation."""

    FREE = 0
    RESERVED = 1
    CACHED = 2
    DETACHED = 3
    MOVING = 4
    QUARANTINED = 5


# Python 3.11 looks a member up in 0.2 us each time that it is asked of its enumeration.
FREE, RESERVED, CACHED = SlotState.FREE, SlotState.RESERVED, SlotState.CACHED


class ExtentSlots:
    """The slots of one extent: states, generations, checksums, and which are available.

    ``generations`` are where the extent's workers look, zero at first: a slot's is
    written before anybody can reserve the slot anew. None: nobody looks.
    ``checksums`` are of what the slots' writers wrote, ``NO_CHECKSUM`` where none
    was given. ``order`` are the bytes of its first slots, one after the other, as
    ``Slots`` have them: slots that lie in order are a part of it.
    Not thread-safe. Knows nothing of pages, pins or memory.
    """

    __slots__ = (
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
    ) -> None:
        self.extent_id = extent_id
        self.tier = tier
        self.slot_count = slot_count
        self.states = bytearray(slot_count)
        self.generations: Generations = (
            array("Q", bytes(8 * slot_count)) if generations is None else generations
        )
        self.checksums = array("Q", bytes(8 * slot_count))
        base = extent_id << INDEX_BITS
        self.order = array("Q", range(base, base + min(slot_count, ORDERED))).tobytes()
        # A stack: the lowest index on top, so that fresh slots come in order.
        self.available = list(range(slot_count - 1, -1, -1))

    @property
    def is_empty(self) -> bool:
        """Whether all slots are FREE."""
        return len(self.available) == self.slot_count

    def take(self, count: int, state: SlotState = RESERVED) -> Iterator[int]:
        """Yield ``count`` available slots, no longer available. FREE to ``state``."""
        base = self.extent_id << INDEX_BITS
        split = len(self.available) - count
        taken = self.available[split:]
        del self.available[split:]
        for index in reversed(taken):
            self.states[index] = state
            yield base | index


def mark(extents: Mapping[int, ExtentSlots], slots: Slots, state: SlotState) -> None:
    """Note that slots are in a state, which is not FREE.

    Those that lie in order, as most that were reserved at once, take no step each.
    """
    if not slots:
        return
    first, count = slots[0], len(slots)
    extent, start = extents[first >> INDEX_BITS], first & INDEX_MASK
    # Whatever has bytes is compared where it is.
    if extent.order.startswith(slots, start * slots.itemsize):
        extent.states[start : start + count] = bytes((state,)) * count
        return
    # Pairs of index and extent: of numbers of half the size a step costs a third.
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
    """Give slots back: any state to FREE, generation + 1, without a checksum."""
    owner = -1
    # From the end, so that the next to reserve gets them in order again.
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
