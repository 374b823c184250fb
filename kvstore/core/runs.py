"""Slots as an answer: runs of one extent each, with generations."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, TypeAlias, cast

from kvstore.core.slots import INDEX_BITS, INDEX_MASK, ExtentSlots, Slots

# Of slots that follow each other a range.
Indexes: TypeAlias = "range | array[int]"


class Run(NamedTuple):
    """Consecutive pages that lie in one extent."""

    extent_id: int
    tier: int
    indexes: Indexes
    generations: "array[int]"


def runs_of(slots: Slots, extents: Mapping[int, ExtentSlots]) -> tuple[Run, ...]:
    """Return ``slots``, all of ``extents``, as runs in the same order.

    Slots that lie in order, as those of an arena do that is not full yet, take no step
    a page: a comparison and a copy (6,249 of them: 5 us). Others are read as uint32
    pairs of (index, extent), and each generation by itself.
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
        return (_one_by_one(slots, extent),)
    parts = ((extents[owner], slots[start:stop]) for owner, start, stop in _spans(owners))
    return tuple(_in_order(part, each) or _one_by_one(part, each) for each, part in parts)


def _spans(owners: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    start = 0
    for owner, group in groupby(owners):
        stop = start + sum(1 for _ in group)
        yield owner, start, stop
        start = stop


def _in_order(slots: Slots, extent: ExtentSlots) -> Run | None:
    """Return slots of one extent as a run, if they lie there one after the other."""
    first = slots[0] & INDEX_MASK
    # Whatever has bytes is compared where it is; stubs know of bytes alone.
    if not extent.order.startswith(cast("bytes", slots), first * slots.itemsize):
        return None
    stop = first + len(slots)
    table = memoryview(cast("array[int]", extent.generations)).cast("B")
    generations = array("Q")
    generations.frombytes(table[first * slots.itemsize : stop * slots.itemsize])
    return Run(extent.extent_id, extent.tier, range(first, stop), generations)


def _one_by_one(slots: Slots, extent: ExtentSlots) -> Run:
    indexes = array("I", slots.tobytes())[0::2]
    # Twice the first, so that it gives a tuple also where there is one.
    generations = itemgetter(*indexes, indexes[0])(extent.generations)
    return Run(extent.extent_id, extent.tier, indexes, array("Q", generations[:-1]))


def extent_of(slot: int) -> int:
    """Return the extent id of a slot."""
    return slot >> INDEX_BITS
