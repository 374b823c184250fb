"""Placement: the tier of each page of a path, as runs of pages in one tier."""

from collections.abc import Collection, Iterator
from itertools import groupby
from typing import TypeAlias

from kvstore.core.index.node import Node, Position
from kvstore.core.index.radix import ancestor, path_slots
from kvstore.core.pool.namespace import namespace_of
from kvstore.core.values.slots import INDEX_BITS, Slots

FIRST, LOWER = 1, 2
# Pairs of (a run's end, its tier) from the beginning on. An end counts pages from there. None
# means that all pages are in tier 1.
Tiers: TypeAlias = "tuple[tuple[int, int], ...] | None"


def extended(tiers: Tiers, start: int, end: int, tier: int) -> Tiers:
    """Returns the tiers of ``start`` pages, followed by pages through ``end`` in ``tier``."""
    if tier == FIRST and tiers is None:
        return None
    runs = [*clipped(tiers, start)]
    if end > start:
        if runs and runs[-1][1] == tier:
            runs.pop()
        runs.append((end, tier))
    return None if all(each == FIRST for _, each in runs) else tuple(runs)


def clipped(tiers: Tiers, depth: int) -> tuple[tuple[int, int], ...]:
    """Returns the runs of the first ``depth`` pages."""
    runs, start = [], 0
    for end, tier in tiers or ((depth, FIRST),):
        if start < depth:
            runs.append((min(end, depth), tier))
        start = end
    return tuple(runs)


def joined(tiers: Tiers, depth: int, later: Tiers, end: int) -> Tiers:
    """Returns the tiers of the first ``depth`` pages, followed by ``later`` through ``end``."""
    for stop, tier in clipped(later, end):
        if stop > depth:
            tiers, depth = extended(tiers, depth, stop, tier), stop
    return tiers


def page_counts(tiers: Tiers, end: int) -> Iterator[tuple[int, int]]:
    """Yields each tier of the first ``end`` pages, with the number of its pages."""
    counts: dict[int, int] = {}
    start = 0
    for stop, tier in clipped(tiers, end):
        counts[tier] = counts.get(tier, 0) + stop - start
        start = stop
    yield from sorted(counts.items())


def tier_at(tiers: Tiers, depth: int) -> int:
    """Returns the tier of the page that ends at ``depth``, which is not beyond all runs."""
    if tiers is None:
        return FIRST
    return next(tier for end, tier in tiers if depth <= end)


def end_of_other(tiers: Tiers, depth: int) -> int:
    """Returns the end of the last page in another tier, above the page that ends at ``depth``."""
    return max((end for end, _ in tiers or () if end < depth), default=0)


def slots_in(tiers: Tiers, at: Position, start: int = 0) -> Slots:
    """Returns the slots of a path through ``at``, each in its tier.

    ``start`` is the number of pages above the top of ``at``'s tree.
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
    """Returns, for each page of a path, the lowest tier that has a copy."""
    if namespace_of(at.node).lower_arena is None or _is_in_first(at):
        return None
    return _runs(at, (pair for node, pages in _path(at) for pair in _by_count(node, pages)))[1]


def nearest_usable(
    at: Position, first: Collection[int], lower: Collection[int]
) -> tuple[Position, Tiers]:
    """Returns the part of a path with copies in some extents, and the lowest tiers of these.

    ``first`` are extents of tier 1, and ``lower`` those of tier 2.
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
    """Returns the nodes of a path with the number of their pages on it, from the top."""
    path, node = [at], at.node.parent
    while node is not None:
        path.append(Position(node, len(node.slots)))
        node = node.parent
    return [(each.node, each.pages) for each in reversed(path)]


def _is_in_first(at: Position) -> bool:
    """Returns whether all pages of a path have a copy in tier 1. Those of most matches have."""
    node, pages = at
    while pages <= node.copy_count:
        above = node.parent
        if above is None:
            return True
        node, pages = above, len(above.slots)
    return False


def _by_count(node: Node, pages: int) -> Iterator[tuple[int, int]]:
    first = min(node.copy_count, pages)
    if first:
        yield first, FIRST
    if first < pages:
        yield pages - first, LOWER


def _runs(at: Position, pairs: Iterator[tuple[int, int]]) -> tuple[Position, Tiers]:
    """Joins runs, given by page count and tier, up to the first page in no tier."""
    tiers: Tiers = None
    depth = 0
    for count, tier in pairs:
        if not tier:
            return ancestor(at, depth), tiers
        tiers = extended(tiers, depth, depth + count, tier)
        depth += count
    return at, tiers
