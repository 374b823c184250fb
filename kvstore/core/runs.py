"""Slots as an answer: runs of one extent each, with generations."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, cast

from kvstore.core.slots import INDEX_BITS, ExtentSlots, Slots

# Indexes that a run in order is a part of; beyond them it is taken slot by slot.
ASCENDING = array("I", range(1 << 16))
MANY = 64


class Run(NamedTuple):
    """Consecutive pages that lie in one extent."""

    extent_id: int
    tier: int
    indexes: Sequence[int]
    generations: Sequence[int]


def runs_of(slots: Slots, extents: Mapping[int, ExtentSlots]) -> tuple[Run, ...]:
    """Return ``slots``, all of ``extents``, as runs in the same order.

    The common case of a path in one extent takes no Python step a page: the
    array is read as uint32 pairs of (index, extent).
    """
    if not slots:
        return ()
    pairs = array("I", slots.tobytes())
    indexes, owners = pairs[0::2], pairs[1::2]
    if owners.count(owners[0]) == len(owners):
        return (_run(indexes, extents[owners[0]]),)
    return tuple(_run(indexes[start:stop], extents[owner]) for owner, start, stop in _spans(owners))


def _spans(owners: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    start = 0
    for owner, group in groupby(owners):
        stop = start + sum(1 for _ in group)
        yield owner, start, stop
        start = stop


def _run(indexes: "array[int]", extent: ExtentSlots) -> Run:
    first, count = indexes[0], len(indexes)
    generations: Sequence[int]
    if count == 1:
        generations = (extent.generations[first],)
    elif count >= MANY and indexes == ASCENDING[first : first + count]:
        # As slots of an arena that is not full yet are: one copy, and no step for each.
        table = memoryview(cast("array[int]", extent.generations))
        generations = array("Q", table[first : first + count].tobytes())
    else:
        generations = itemgetter(*indexes)(extent.generations)
    return Run(extent.extent_id, extent.tier, indexes, generations)


def extent_of(slot: int) -> int:
    """Return the extent id of a slot."""
    return slot >> INDEX_BITS
