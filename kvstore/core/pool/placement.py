"""Which copy of each page of a path is meant: runs of pages that are in one tier each."""

from collections.abc import Collection, Iterator
from itertools import groupby
from typing import TypeAlias

from kvstore.core.index.node import Node, Position
from kvstore.core.index.radix import ancestor, path_slots
from kvstore.core.pool.namespace import namespace_of
from kvstore.core.values.slots import INDEX_BITS, Slots

FIRST, LOWER = 1, 2
# (the run's end, its tier), from the beginning; an end counts pages from there. None: all of
# them are in tier 1.
Tiers: TypeAlias = "tuple[tuple[int, int], ...] | None"


def extended(tiers: Tiers, start: int, end: int, tier: int) -> Tiers:
    """Return the tiers of ``start`` pages and then of those through ``end``, in ``tier``."""
    if tier == FIRST and tiers is None:
        return None
    runs = [*clipped(tiers, start)]
    if end > start:
        if runs and runs[-1][1] == tier:
            runs.pop()
        runs.append((end, tier))
    return None if all(each == FIRST for _, each in runs) else tuple(runs)


def clipped(tiers: Tiers, depth: int) -> tuple[tuple[int, int], ...]:
    """Return the runs of the first ``depth`` pages."""
    runs, start = [], 0
    for end, tier in tiers or ((depth, FIRST),):
        if start < depth:
            runs.append((min(end, depth), tier))
        start = end
    return tuple(runs)


def joined(tiers: Tiers, depth: int, later: Tiers, end: int) -> Tiers:
    """Return the tiers of the first ``depth`` pages, and after them ``later`` through ``end``."""
    for stop, tier in clipped(later, end):
        if stop > depth:
            tiers, depth = extended(tiers, depth, stop, tier), stop
    return tiers


def page_counts(tiers: Tiers, end: int) -> Iterator[tuple[int, int]]:
    """Yield each tier that some of the first ``end`` pages are in, with how many are."""
    counts: dict[int, int] = {}
    start = 0
    for stop, tier in clipped(tiers, end):
        counts[tier] = counts.get(tier, 0) + stop - start
        start = stop
    yield from sorted(counts.items())


def tier_at(tiers: Tiers, depth: int) -> int:
    """Return the tier of the page that ends at ``depth``, which is not beyond all runs."""
    if tiers is None:
        return FIRST
    return next(tier for end, tier in tiers if depth <= end)


def end_of_other(tiers: Tiers, depth: int) -> int:
    """Return where the last page above the one that ends at ``depth`` ends in another tier."""
    return max((end for end, _ in tiers or () if end < depth), default=0)


def slots_in(tiers: Tiers, at: Position, start: int = 0) -> Slots:
    """Return the slots of a path through ``at``, each in its tier.

    ``start`` is how many pages are above the top of ``at``'s tree.
    """
    slots = path_slots(at)
    if tiers is None:
        return slots
    lower, begin = path_slots(at, LOWER), 0
    for end, tier in clipped(tiers, at.depth):
        if tier == LOWER and end > start:
            part = slice(max(begin - start, 0), end - start)
            slots[part] = lower[part]
        begin = end
    return slots


def nearest(at: Position) -> Tiers:
    """Return the nearest tier that has a copy of each page of a path."""
    if namespace_of(at.node).lower_arena is None:
        return None
    return _runs(at, (pair for node, pages in _path(at) for pair in _by_count(node, pages)))[1]


def nearest_usable(
    at: Position, first: Collection[int], lower: Collection[int]
) -> tuple[Position, Tiers]:
    """Return as much of a path as has copies in some extents, and the nearest tiers of those.

    ``first`` are extents of tier 1, ``lower`` those of tier 2.
    """

    def tiers_of(node: Node, pages: int) -> Iterator[int]:
        for index in range(pages):
            if node.slots[index] >> INDEX_BITS in first:
                yield FIRST
            elif node.lower is not None and node.lower.slots[index] >> INDEX_BITS in lower:
                yield LOWER
            else:
                yield 0

    each_page = (tier for node, pages in _path(at) for tier in tiers_of(node, pages))
    return _runs(at, ((sum(1 for _ in group), tier) for tier, group in groupby(each_page)))


def _path(at: Position) -> list[tuple[Node, int]]:
    """Return the nodes of a path with how many pages of each are on it, from the top."""
    path, node = [at], at.node.parent
    while node is not None:
        path.append(Position(node, len(node.slots)))
        node = node.parent
    return [(each.node, each.pages) for each in reversed(path)]


def _by_count(node: Node, pages: int) -> Iterator[tuple[int, int]]:
    first = min(node.copy_count, pages)
    yield first, FIRST
    yield pages - first, LOWER


def _runs(at: Position, pairs: Iterator[tuple[int, int]]) -> tuple[Position, Tiers]:
    """Put runs together that are given by page count and tier, up to the first in no tier."""
    tiers: Tiers = None
    depth = 0
    for count, tier in pairs:
        if not tier:
            return ancestor(at, depth), tiers
        tiers = extended(tiers, depth, depth + count, tier)
        depth += count
    return at, tiers
