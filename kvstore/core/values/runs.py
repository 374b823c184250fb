"""Slots as an answer: runs within one extent each, with their generations."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from kvstore.core.values.slots import INDEX_BITS, INDEX_MASK, ExtentSlots, Slots

# A range if the indexes ascend by one.
Indexes: TypeAlias = "range | array[int]"
# A separate run pays from this many slots on, on both sides of the wire. A few may be shorter.
WORTH, FEW = 128, 4


class Run(NamedTuple):
    """Consecutive pages that lie in one extent."""

    extent_id: int
    tier: int
    indexes: Indexes
    generations: "array[int]"


def runs_of(slots: Slots, extents: Mapping[int, ExtentSlots]) -> tuple[Run, ...]:
    """Returns ``slots``, all of ``extents``, as runs in the same order.

    Slots that ascend by one cost a comparison and a copy (6,249 of them: 5 us). An arena that
    is not full gives out such slots, and so do long parts of a conversation. Other slots are
    read as uint32 pairs of (index, extent), and each generation by itself.
    """
    if not slots:
        return ()
    owner = slots[0] >> INDEX_BITS
    extent = extents[owner]
    in_order = _in_order(slots, extent)
    if in_order is not None:
        return (in_order,)
    owners = array("I", slots.tobytes())[1::2]
    if owners == array("I", (owner,)) * len(owners):
        return tuple(_parts(slots, extent))
    parts = (_parts(slots[start:stop], extents[owner]) for owner, start, stop in _spans(owners))
    return tuple(chain.from_iterable(parts))


def _spans(owners: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    start = 0
    for owner, group in groupby(owners):
        stop = start + sum(1 for _ in group)
        yield owner, start, stop
        start = stop


def _parts(slots: Slots, extent: ExtentSlots) -> list[Run]:
    """Returns slots of one extent as ascending runs if these are few, and as one run otherwise."""
    ends = [len(slots)] if len(slots) < 2 * WORTH else _ends(slots, extent)
    runs, start = [], 0
    for end in ends:
        part = _in_order(slots[start:end], extent)
        if part is None:
            return [_one_by_one(slots, extent)]
        runs.append(part)
        start = end
    return runs


def _ends(slots: Slots, extent: ExtentSlots) -> list[int]:
    """Returns the end of each ascending part of some slots, or one end if the parts are many.

    Costs a few memcmps for each part.
    """
    size, count = slots.itemsize, len(slots)
    view, order = memoryview(slots).cast("B"), extent.order
    ends: list[int] = []
    start = 0
    while start < count:
        if len(ends) > FEW + start // WORTH:
            return [count]
        offset = (slots[start] & INDEX_MASK) * size
        # This many ascend, and this many do not.
        known, over = 1, count - start + 1
        while over - known > 1:
            wanted = min(2 * known, (known + over) // 2)
            if order.startswith(view[start * size : (start + wanted) * size], offset):
                known = wanted
            else:
                over = wanted
        start += known
        ends.append(start)
    return ends


def _in_order(slots: Slots, extent: ExtentSlots) -> Run | None:
    """Returns slots of one extent as a run if they ascend by one, and None otherwise."""
    first = slots[0] & INDEX_MASK
    # An array offers its bytes, so this compares without a copy.
    if not extent.order.startswith(slots, first * slots.itemsize):
        return None
    stop = first + len(slots)
    table = memoryview(extent.generations).cast("B")  # type: ignore[arg-type]
    generations = array("Q")
    generations.frombytes(table[first * slots.itemsize : stop * slots.itemsize])
    return Run(extent.extent_id, extent.tier, range(first, stop), generations)


def _one_by_one(slots: Slots, extent: ExtentSlots) -> Run:
    indexes = array("I", slots.tobytes())[0::2]
    # The first one twice, so that one slot gives a tuple too.
    generations = itemgetter(*indexes, indexes[0])(extent.generations)
    return Run(extent.extent_id, extent.tier, indexes, array("Q", generations[:-1]))


def extent_of(slot: int) -> int:
    """Returns the id of a slot's extent."""
    return slot >> INDEX_BITS
