"""Copies on their way from one tier to another: decided, then copied by others, then finished.

A move holds its sources as a pin does, so that they stay what they are, cached and
matchable, and the copies that its targets are to follow. Its targets are MOVING.
"""

from array import array
from collections.abc import Iterable
from typing import NamedTuple

from kvstore.core.holds import Hold
from kvstore.core.index.node import Lower, Node, Position
from kvstore.core.index.radix import ancestor
from kvstore.core.namespace import Namespace, namespace_of
from kvstore.core.page_events import note_pages
from kvstore.core.pages import release
from kvstore.core.tiers import FIRST, LOWER, Tiers, extended, nearest
from kvstore.core.values.events import Cause, PagesChange
from kvstore.core.values.slots import INDEX_BITS, INDEX_MASK, Slots, SlotState


class Transfer(NamedTuple):
    """One page to copy; ``end`` counts pages from the beginning through it."""

    end: int
    source: int
    target: int


class Move(Hold):
    """Pages of one path that get a copy in ``tier``, in prefix order."""

    __slots__ = ("tier", "transfers")

    def __init__(
        self, at: Position, tier: int, tiers: Tiers, transfers: Iterable[Transfer]
    ) -> None:
        super().__init__(0, namespace_of(at.node), 0.0, tiers)
        self.tier = tier
        self.transfers = list(transfers)
        self.stand_at(at)

    def aim(self, targets: Slots) -> None:
        """Give the first pages their targets, and leave the others out."""
        pairs = zip(self.transfers, targets, strict=False)
        self.transfers = [each._replace(target=target) for each, target in pairs]


def lacking(at: Position, tier: int) -> list[tuple[int, int]]:
    """Return the pages of a path without a copy in ``tier`` as (end, slot of the other tier).

    From the beginning on.
    """
    found: list[tuple[int, int]] = []
    node: Node | None = at.node
    while node is not None:
        pages = at.pages if node is at.node else len(node.slots)
        have = node.copy_count if tier == FIRST else node.lower_count
        if have < pages:
            slots = node.copies_in(FIRST + LOWER - tier).slots
            found += [(node.start + k + 1, slots[k]) for k in range(pages - 1, have - 1, -1)]
        node = node.parent
    return found[::-1]


def prepare(at: Position, tier: int, most: int, moving: set[int]) -> Move | None:
    """Hold the first ``most`` pages of a path that lack a copy in ``tier``.

    But for those whose slot is among ``moving``. The move has no targets yet: zeros.
    None where there is nothing to copy.
    """
    missing = lacking(at, tier)
    pages = [each for each in missing if each[1] not in moving][:most]
    if not pages:
        return None
    at = ancestor(at, pages[-1][0])
    tiers: Tiers = nearest(at)
    if tier == LOWER:
        # Sources in tier 1, and above them the copies in tier 2 that the targets follow.
        tiers = extended(((missing[0][0] - 1, LOWER),), missing[0][0] - 1, at.depth, FIRST)
    return Move(at, tier, tiers, [Transfer(end, source, 0) for end, source in pages])


def finish(move: Move, moving: set[int], *, copied: bool) -> int:
    """Publish the targets of a move, as far as their pages are still where they were.

    MOVING to CACHED, or to FREE. Returns how many pages got a copy. ``copied`` says that
    the bytes are there; ``moving`` is given back the sources.
    """
    namespace = move.namespace
    published: list[int] = []
    arena = namespace.arena_in(move.tier)
    for end, source, target in move.transfers:
        moving.discard(source)
        at = move.position_at(end)
        slots = array("Q", [target])
        if copied and target >> INDEX_BITS in arena.lasting and _fits(at, move.tier):
            arena.change(slots, SlotState.MOVING, SlotState.CACHED)
            arena.keep_checksums([(target, _checksum(namespace, source))])
            _publish(at.node, move.tier, target)
            published.append(end)
        else:
            arena.recycle(slots, SlotState.MOVING)
    for first, last in side_by_side(published):
        pages = last - first + 1
        note_pages(PagesChange.COPIED, Cause.MOVED, *move.position_at(last), pages, move.tier)
    touched = [move.position_at(each.end).node for each in move.transfers]
    release(move.anchors)
    for node in touched:
        namespace.index.compact(node)
    return len(published)


def side_by_side(ends: list[int]) -> list[tuple[int, int]]:
    """Return the runs of numbers that follow each other, each by its first and its last."""
    firsts = [each for each in ends if each - 1 not in ends]
    lasts = [each for each in ends if each + 1 not in ends]
    return list(zip(firsts, lasts, strict=True))


def _checksum(namespace: Namespace, slot: int) -> int:
    return namespace.extents[slot >> INDEX_BITS].checksums[slot & INDEX_MASK]


def _fits(at: Position, tier: int) -> bool:
    """Return whether a page can be given a copy: it is cached, and the next without one."""
    node, parent = at.node, at.node.parent
    if node.detached:
        return False
    if tier == FIRST:
        return node.copy_count == at.pages - 1
    assert parent is not None  # the root has no pages
    follows = parent.parent is None or parent.lower_count == len(parent.slots)
    return node.lower_count == at.pages - 1 and follows


def _publish(node: Node, tier: int, slot: int) -> None:
    if tier == LOWER and node.lower is None:
        width = len(node.slots)
        node.lower = Lower(node, array("Q", bytes(8 * width)), width)
        if node.lower.parent is not None:
            node.lower.parent.below += 1
    elif tier == FIRST and node.is_bare:
        node.cover()
    node.copies_in(tier).append_copy(slot)
    node.tree.leaf_changed(node)
