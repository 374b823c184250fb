"""Moves between tiers 1 and 2: plan, promote, demote, finish.

The core decides under its owner's mutex; others copy outside it, and finish under it. A
move holds its sources as a pin does. They stay cached and matchable, and so do the copies
that its targets are to follow. Its targets are MOVING.
"""

from array import array
from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

from kvstore.core.cache_state import CacheState
from kvstore.core.eviction.protocol import Leaf, Victim
from kvstore.core.index.condemned import has_left
from kvstore.core.index.node import Lower, Node, Position
from kvstore.core.index.radix import ancestor
from kvstore.core.journal.records import NO_PAGE, PagesRecord, RecordKind
from kvstore.core.leases.holds import Hold
from kvstore.core.leases.journaling import generations_in
from kvstore.core.pool.arena import Arena
from kvstore.core.pool.copy_changes import note_copied
from kvstore.core.pool.namespace import Namespace, namespace_of
from kvstore.core.pool.pages import evict, nominate, note_pages, release
from kvstore.core.pool.placement import FIRST, LOWER, Tiers, extended, nearest
from kvstore.core.pool.tier_policy import WritePolicy
from kvstore.core.values.event_log import Cause, PagesChange
from kvstore.core.values.group_pages import is_group_page
from kvstore.core.values.requests import Caller, MatchOptions, Sequence
from kvstore.core.values.runs import runs_of
from kvstore.core.values.slots import INDEX_BITS, INDEX_MASK, Slots, SlotState
from kvstore.core.verbs.group_windows import require_windows
from kvstore.core.verbs.lookup import find

# The most pages of a move that no match waits for. It is finished in one step, which takes less
# than a millisecond.
MOVE_PAGES = 32


class Transfer(NamedTuple):
    """One page to copy. ``end`` counts pages from the beginning through it."""

    end: int
    source: int
    target: int


class Move(Hold):
    """A hold on pages of one path that get a copy in ``tier``, in prefix order."""

    __slots__ = ("tier", "transfers")

    def __init__(
        self, at: Position, tier: int, tiers: Tiers, transfers: Iterable[Transfer]
    ) -> None:
        super().__init__(0, namespace_of(at.node), 0.0, tiers)
        self.tier = tier
        self.transfers = list(transfers)
        self.stand_at(at)

    def aim(self, targets: Slots) -> None:
        """Gives the first pages their targets, and leaves the others out."""
        pairs = zip(self.transfers, targets, strict=False)
        self.transfers = [each._replace(target=target) for each, target in pairs]


def lacking(at: Position, tier: int) -> list[tuple[int, int]]:
    """Returns the pages of a path without a copy in ``tier`` as (end, slot in the other tier).

    They are in prefix order. A page of a KV cache group needs no copies above it in tier 1, so
    there it is the only one. Costs a step for each node up to the first whose pages all have
    copies in tier 2, or in tier 1 for each node of the path.
    """
    found: list[tuple[int, int]] = []
    node: Node | None = at.node
    while node is not None:
        pages = at.pages if node is at.node else len(node.slots)
        have = node.copy_count if tier == FIRST else node.lower_count
        if have < pages:
            slots = node.copies_in(FIRST + LOWER - tier).slots
            found += [(node.start + k + 1, slots[k]) for k in range(pages - 1, have - 1, -1)]
        # A page has a copy in tier 2 only if its parent has one.
        is_last = have > 0 if tier == LOWER else is_group_page(node.edge)
        node = None if is_last else node.parent
    return found[::-1]


def prepare(at: Position, tier: int, most: int, moving: set[int]) -> Move | None:
    """Holds the first ``most`` pages of a path that lack a copy in ``tier``.

    Leaves out pages whose slot is among ``moving``. The move has zeros for targets. Returns
    None if there is nothing to copy.
    """
    missing = lacking(at, tier)
    pages = [each for each in missing if each[1] not in moving][:most]
    if not pages:
        return None
    at = ancestor(at, pages[-1][0])
    if tier == FIRST:
        tiers: Tiers = ((at.depth, LOWER),) if is_group_page(at.node.edge) else nearest(at)
    else:
        # Sources in tier 1, and above them the copies in tier 2 that the targets continue.
        tiers = extended(((missing[0][0] - 1, LOWER),), missing[0][0] - 1, at.depth, FIRST)
    return Move(at, tier, tiers, [Transfer(end, source, 0) for end, source in pages])


class _Part(NamedTuple):
    """Pages of a move that stand side by side in one node, in prefix order.

    They are the node's pages from ``first`` until ``last``, which count from zero.
    """

    node: Node
    first: int
    last: int
    sources: Slots
    targets: Slots

    def upto(self, count: int) -> "_Part":
        """Returns the first pages of it."""
        end = self.first + count
        return _Part(self.node, self.first, end, self.sources[:count], self.targets[:count])


def finish(move: Move, moving: set[int], *, copied: bool) -> int:
    """Publishes the targets of a move whose pages are still where they were.

    MOVING to CACHED, or to FREE. Returns how many pages got a copy. ``copied`` means that the
    bytes are there. Takes the sources out of ``moving``.
    """
    namespace, count = move.namespace, 0
    arena = namespace.arena_in(move.tier)
    published: list[_Part] = []
    parts = _parts(move)
    for part in parts:
        moving.difference_update(part.sources)
        good = _good_count(part, move.tier, arena) if copied else 0
        if good:
            fit = part.upto(good)
            _publish(namespace, fit, move.tier, arena)
            published.append(fit)
            count += good
        arena.recycle(part.targets[good:], SlotState.MOVING)
    for node, last, pages in _side_by_side(published):
        note_pages(namespace, PagesChange.COPIED, Cause.MOVED, node, last, pages, move.tier)
        if namespace.events.changes is not None:
            note_copied(namespace.events.changes, node, last, pages, move.tier)
    release(move.anchors)
    for node in dict.fromkeys(each.node for each in parts):
        namespace.index.compact(node)
    return count


def _parts(move: Move) -> list[_Part]:
    """Returns the parts of a move, in prefix order: found in one walk up the path.

    In a part of the tree that left the index it looks for each node anew.
    """
    parts: list[_Part] = []
    at: Position | None = None
    left = move.transfers
    while left:
        end = left[-1].end
        at = move.position_at(end) if at is None or at.node.detached else ancestor(at, end)
        start = at.node.start
        first = len(left) - 1
        while first and left[first - 1].end == left[first].end - 1 > start:
            first -= 1
        stretch, left = left[first:], left[:first]
        sources = array("Q", (each.source for each in stretch))
        targets = array("Q", (each.target for each in stretch))
        parts.append(_Part(at.node, end - start - len(stretch), end - start, sources, targets))
    return parts[::-1]


def _good_count(part: _Part, tier: int, arena: Arena) -> int:
    """Returns how many of a part's pages can get a copy: cached, and the next ones without one."""
    node, parent = part.node, part.node.parent
    if has_left(node):
        return 0
    if tier == FIRST:
        is_next = node.copy_count == part.first
    else:
        assert parent is not None  # the root has no pages
        follows = parent.parent is None or parent.lower_count == len(parent.slots)
        is_next = node.lower_count == part.first and follows
    if not is_next:
        return 0
    lasting = arena.lasting
    return sum(1 for _ in takewhile(lambda slot: slot >> INDEX_BITS in lasting, part.targets))


def _publish(namespace: Namespace, part: _Part, tier: int, arena: Arena) -> None:
    """Gives pages their copies in a tier."""
    node, slots = part.node, part.targets
    extents = namespace.extents
    checksums = array(
        "Q", (extents[each >> INDEX_BITS].checksums[each & INDEX_MASK] for each in part.sources)
    )
    if namespace.journal is not None:
        _write(namespace, part, tier, checksums)
    arena.change(slots, SlotState.MOVING, SlotState.CACHED)
    arena.keep_checksums(zip(slots, checksums, strict=True))
    if tier == LOWER and node.lower is None:
        width = len(node.slots)
        node.lower = Lower(node, array("Q", bytes(8 * width)), width)
        if node.lower.parent is not None:
            node.lower.parent.below += 1
    elif tier == FIRST and node.is_bare:
        node.cover()
    node.copies_in(tier).append_copies(slots)
    node.tree.leaf_changed(node)


def _write(namespace: Namespace, part: _Part, tier: int, checksums: "array[int]") -> None:
    """Writes to the journal that pages get copies in a tier: a record for consecutive ids."""
    journal, width, node = namespace.journal, namespace.width, part.node
    assert journal is not None  # the caller knows
    assert node.page_ids is not None  # there is a journal
    generations = generations_in(runs_of(part.targets, namespace.extents))
    first = part.first
    for ids in node.page_ids.between(part.first, part.last):
        last = first + len(ids)
        columns = slice(first - part.first, last - part.first)
        journal.copy(
            PagesRecord(
                *(RecordKind.COPY, tier, namespace.number, 0, ids.start),
                *(ancestor(Position(node, last), node.start + first).page_id, NO_PAGE),
                *(0, 0, 0, 0, 0),
                part.targets[columns],
                generations[columns],
                checksums[columns],
                node.edge[first * width : last * width],
            )
        )
        first = last


def _side_by_side(parts: list[_Part]) -> list[tuple[Node, int, int]]:
    """Returns the stretches of consecutive pages: the last one's node and end in it, and a count.

    A stretch may go on from one node to the next.
    """
    found: list[tuple[Node, int, int]] = []
    depth = -1
    for node, first, last, *_ in parts:
        pages = last - first
        if found and node.start + first == depth:
            pages += found.pop()[2]
        found.append((node, last, pages))
        depth = node.start + last
    return found


class Moves:
    """Keeps tier 1 from running full, and brings back pages that are used again.

    ``under_way`` are the moves that nobody finished yet, and ``sources`` the slots that they
    copy from.
    """

    def __init__(self, state: CacheState) -> None:
        self._state = state
        self.under_way: dict[Move, None] = {}
        self.sources: set[int] = set()

    def moves_wanted(self) -> bool:
        """Returns True if ``plan_moves`` may have something to do."""
        return bool(self._state.wanted)

    def plan_moves(self, most: int) -> list[Move]:
        """Plans moves of at most ``most`` pages. The caller has to finish them.

        Moves to tier 2 what was written or used. While few slots of tier 1 are free, it also moves
        what is first in tier 1's order, and drops copies that tier 2 has at once. Moves to tier 1
        what was read in place again, while slots are free.
        """
        moves: list[Move] = []
        if self._state.wanted is not None:
            self._drain(self._state.wanted.to_lower, LOWER, moves, most)
            for arena in list(self._state.wanted.pressed):
                if not self._relieve(arena, moves, most):
                    del self._state.wanted.pressed[arena]
            self._drain(self._state.wanted.to_first, FIRST, moves, most)
        return moves

    def plan_promotion(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        options: MatchOptions,
        most: int,
    ) -> list[Move]:
        """Plans to copy to tier 1 at most ``most`` pages that a match would find in tier 2 alone.

        Includes the source page, if the match wants one. Plans nothing unless the policy promotes
        on a match, and no more than there are slots for. Costs as much as the match, and a few
        steps for each page. Raises the errors of a match.
        """
        lease = self._state.member(caller)
        namespace = self._state.own(lease, namespace_id)
        moves: list[Move] = []
        if self._state.wanted is not None and self._state.wanted.policy.promote:
            self._state.length(sequence.tokens, sequence.position)
            require_windows(namespace, options.groups)
            found = find(lease, namespace, sequence, options, anywhere=True)
            left = most - self._begin(found.last, FIRST, moves, most)
            pages = [node for group in found.groups for node, tier in group.pages if tier != FIRST]
            while pages and left:
                begun = self._begin(Position(pages.pop(), 1), FIRST, moves, 1)
                left -= begun
                if not begun and not namespace.arena.free_count:
                    # There is no room for the others either.
                    break
        return moves

    def finish_moves(self, moves: Iterable[Move], *, copied: bool = True) -> int:
        """Publishes copied pages that are still cached; returns how many.

        Raises nothing. Without ``copied`` it publishes nothing.
        """
        published = 0
        for move in moves:
            del self.under_way[move]
            count = finish(move, self.sources, copied=copied)
            published += count
            for counters in (self._state.counters, move.namespace.counters):
                if move.tier == LOWER:
                    counters.demoted_page_count += count
                else:
                    counters.promoted_page_count += count
        return published

    def _mark(self, arena: Arena, part: float) -> int:
        return int(arena.slot_count * part)

    def _drain(self, queue: dict[Node, None], tier: int, moves: list[Move], most: int) -> None:
        """Begins moves along the paths of a queue, the first one first."""
        left = most - _page_count(moves)
        while queue and left > 0:
            node = next(iter(queue))
            del queue[node]
            while not node.slots and node.parent is not None:
                # It was merged with the node below it, or it left.
                node = node.parent
            if node.slots and not has_left(node):
                room = min(left, MOVE_PAGES)
                if tier == FIRST:
                    room = min(room, self._room_to_promote(namespace_of(node).arena))
                begun = self._begin(Position(node, len(node.slots)), tier, moves, room)
                left -= begun
                if begun == room > 0:
                    queue[node] = None

    def _room_to_promote(self, arena: Arena) -> int:
        """Returns how many pages may be promoted. If none may, asks for room for the next."""
        room = arena.free_count - self._mark(arena, self._state.tier_policy.low)
        if room < 1 and self._state.wanted is not None:
            self._state.wanted.pressed[arena] = None
        return room

    def _relieve(self, arena: Arena, moves: list[Move], most: int) -> bool:
        """Makes room in tier 1: drops copies that tier 2 has too, and begins to copy the rest.

        Those that are copied go the next time, unless they were used meanwhile. Returns True if
        anything was done, or was left because of ``most``.
        """
        left = most - _page_count(moves)
        done = left <= 0
        wanted = self._mark(arena, self._state.tier_policy.high) - arena.free_count
        victims = nominate(arena, min(max(wanted, 0), most))
        rest = _drop_copied(victims)
        done = done or len(rest) < len(victims)
        for leaf in rest:
            is_selective = self._state.tier_policy.write is WritePolicy.THROUGH_SELECTIVE
            if is_selective or has_left(leaf.node):
                # A page that was used once is not worth a copy, and a condemned one gets none.
                leaf.node.tree.leaf_changed(leaf.node)
                continue
            at = Position(leaf.node, leaf.copy_count)
            begun = self._begin(at, LOWER, moves, min(left, MOVE_PAGES))
            leaf.node.tree.leaf_changed(leaf.node)
            left -= begun
            done = done or begun > 0
        return done

    def _begin(self, at: Position, tier: int, moves: list[Move], most: int) -> int:
        """Begins to copy at most ``most`` pages of a path; returns how many.

        FREE to MOVING. In tier 2, victims of its policy make room.
        """
        move = prepare(at, tier, most, self.sources) if most > 0 else None
        if move is None:
            return 0
        wanted = len(move.transfers)
        arena = move.namespace.arena_in(tier)
        if wanted > arena.free_count:
            self._make_room(arena, wanted - arena.free_count)
        targets = array("Q")
        arena.take(min(wanted, arena.free_count), arena.lasting, targets, SlotState.MOVING)
        move.aim(targets)
        if self._state.wanted is not None and tier == FIRST:
            self._state.wanted.reserved(arena, 0)
        self.sources.update(each.source for each in move.transfers)
        if move.transfers:
            moves.append(move)
            self.under_way[move] = None
        else:
            release(move.anchors)
        return len(move.transfers)

    def _make_room(self, arena: Arena, pages: int) -> None:
        """Evicts copies from tier 2. For a match, evicts copies from tier 1 that tier 2 has too."""
        if arena.tier == LOWER:
            evicted = evict(nominate(arena, pages))
            self._state.counters.evicted_page_count += evicted
            # No lease caused it.
            self._state.ended.evicted_page_count += evicted
        else:
            for leaf in _drop_copied(nominate(arena, pages)):
                leaf.node.tree.leaf_changed(leaf.node)


def _drop_copied(victims: list[Victim]) -> list[Leaf]:
    """Evicts from tier 1 what tier 2 has too; returns the other leaves, out of the order."""
    rest = []
    for victim in victims:
        leaf = victim.leaf
        if leaf.node.lower_count >= leaf.copy_count:
            evict([victim])
        else:
            rest.append(leaf)
    return rest


def _page_count(moves: Iterable[Move]) -> int:
    return sum(len(each.transfers) for each in moves)
