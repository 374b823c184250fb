"""Moves between tiers: which to make, and what becomes of them.

Decided under the owner's mutex, copied outside it, finished under it.
"""

from array import array
from collections.abc import Iterable

from kvstore.core.arena import Arena
from kvstore.core.evicting import evict
from kvstore.core.eviction.policy import Leaf, Victim
from kvstore.core.index.node import Node, Position
from kvstore.core.lookup import longest
from kvstore.core.moving import Move, finish, prepare
from kvstore.core.namespace import namespace_of
from kvstore.core.pages import release
from kvstore.core.tiers import FIRST, LOWER
from kvstore.core.values.requests import Caller, MatchWishes, Sequence
from kvstore.core.values.slots import SlotState
from kvstore.core.verifying import Verifying
from kvstore.core.wanted_moves import WritePolicy


class Tiering(Verifying):
    """Keeps tier 1 from running full, and brings back what is used again."""

    def moves_wanted(self) -> bool:
        """Return whether ``plan_moves`` may have something to do."""
        return bool(self.wanted)

    def plan_moves(self, most: int) -> list[Move]:
        """Decide on moves of ``most`` pages at most; whoever calls has to finish them.

        To tier 2 what was written or used, then what stands first in tier 1's order while
        few slots are available there; what has a copy in tier 2 goes at once. To tier 1
        what was read in place again, while slots are left.
        """
        moves: list[Move] = []
        if self.wanted is not None:
            self._drain(self.wanted.to_lower, LOWER, moves, most)
            for arena in list(self.wanted.pressed):
                if not self._relieve(arena, moves, most):
                    del self.wanted.pressed[arena]
            self._drain(self.wanted.to_first, FIRST, moves, most)
        return moves

    def plan_promotion(
        self, caller: Caller, namespace_id: bytes, sequence: Sequence, wishes: MatchWishes
    ) -> list[Move]:
        """Decide to copy what a match of ``sequence`` would find in tier 2 alone to tier 1.

        The source page too, if one is wished. Where promoting on a match is wanted, as far
        as slots are to be had. Raises what a match raises.
        """
        lease = self.member(caller)
        namespace = self._own(lease, namespace_id)
        moves: list[Move] = []
        if self.wanted is not None and self.wanted.policy.promote:
            self.length(sequence.tokens, sequence.position)
            found = longest(
                lease,
                namespace,
                sequence,
                wants_source=wishes.source_pin_id is not None,
                wants_next_token=wishes.accept_next_token,
                anywhere=True,
            )
            self._begin(found.last, FIRST, moves, found.last.depth)
        return moves

    def finish_moves(self, moves: Iterable[Move], *, copied: bool = True) -> int:
        """Publish what was copied, where its page is still cached; return how many pages were.

        Raises nothing; without ``copied`` nothing is published.
        """
        published = 0
        for move in moves:
            del self.moves[move]
            count = finish(move, self.moving, copied=copied)
            published += count
            for counters in (self.counters, move.namespace.counters):
                if move.tier == LOWER:
                    counters.demoted_page_count += count
                else:
                    counters.promoted_page_count += count
        return published

    def _mark(self, arena: Arena, part: float) -> int:
        return int(arena.slot_count * part)

    def _drain(self, queue: dict[Node, None], tier: int, moves: list[Move], most: int) -> None:
        """Begin moves along the paths of a queue, the first first."""
        while queue and (left := most - _page_count(moves)) > 0:
            node = next(iter(queue))
            del queue[node]
            while not node.slots and node.parent is not None:
                # It was merged with the node below it, or is gone.
                node = node.parent
            if node.slots and not node.detached:
                if tier == FIRST:
                    left = min(left, self._room_to_promote(namespace_of(node).arena))
                if self._begin(Position(node, len(node.slots)), tier, moves, left):
                    queue[node] = None

    def _room_to_promote(self, arena: Arena) -> int:
        """Return how many pages may be promoted; where none may, room is made for the next."""
        room = arena.free_count - self._mark(arena, self.tier_policy.low)
        if room < 1 and self.wanted is not None:
            self.wanted.pressed[arena] = None
        return room

    def _relieve(self, arena: Arena, moves: list[Move], most: int) -> bool:
        """Make room in tier 1: drop what has a copy in tier 2, and have the rest copied.

        What is copied goes when this comes round again, unless it was used meanwhile.
        Returns whether anything was done, or left for want of ``most``.
        """
        done = _page_count(moves) >= most
        wanted = self._mark(arena, self.tier_policy.high) - arena.free_count
        victims = self._nominate(arena, min(max(wanted, 0), most))
        rest = _drop_copied(victims)
        done = done or len(rest) < len(victims)
        for leaf in rest:
            if self.tier_policy.write is WritePolicy.THROUGH_SELECTIVE:
                # What was used once is not worth its copy.
                leaf.node.tree.leaf_changed(leaf.node)
                continue
            count, at = len(moves), Position(leaf.node, leaf.copy_count)
            self._begin(at, LOWER, moves, most - _page_count(moves))
            leaf.node.tree.leaf_changed(leaf.node)
            done = done or len(moves) > count
        return done

    def _nominate(self, arena: Arena, pages: int) -> list[Victim]:
        """Return victims of ``pages`` pages, or of half as many where there are not, and so on."""
        victims: list[Victim] = []
        while pages and not victims:
            victims = arena.policy.nominate(pages)
            pages //= 2
        return victims

    def _begin(self, at: Position, tier: int, moves: list[Move], most: int) -> bool:
        """Begin to copy ``most`` pages of a path at most; return whether as many are copied.

        FREE to MOVING. In tier 2 what its policy nominates makes room.
        """
        move = prepare(at, tier, most, self.moving) if most > 0 else None
        if move is None:
            return False
        wanted = len(move.transfers)
        arena = move.namespace.arena_in(tier)
        if wanted > arena.free_count:
            self._make_room(arena, wanted - arena.free_count)
        targets = array("Q")
        arena.take(min(wanted, arena.free_count), arena.lasting, targets, SlotState.MOVING)
        move.aim(targets)
        if self.wanted is not None and tier == FIRST:
            self.wanted.reserved(arena, 0)
        self.moving.update(each.source for each in move.transfers)
        if move.transfers:
            moves.append(move)
            self.moves[move] = None
        else:
            release(move.anchors)
        return len(move.transfers) == most

    def _make_room(self, arena: Arena, pages: int) -> None:
        """Evict copies from tier 2; from tier 1, for a match, those that have another there."""
        if arena.tier == LOWER:
            evicted = evict(self._nominate(arena, pages))
            self.counters.evicted_page_count += evicted
            # Of no lease.
            self.ended.evicted_page_count += evicted
        else:
            for leaf in _drop_copied(self._nominate(arena, pages)):
                leaf.node.tree.leaf_changed(leaf.node)


def _drop_copied(victims: list[Victim]) -> list[Leaf]:
    """Evict from tier 1 what has copies in tier 2; return the other leaves, out of the order."""
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
