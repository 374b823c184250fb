"""The policy of the tiers, and the paths that it wants copied soon, in order."""

from dataclasses import dataclass
from enum import Enum

from kvstore.core.index.node import Node, Position
from kvstore.core.pool.arena import Arena
from kvstore.core.pool.placement import LOWER, Tiers

# Copies in tier 2 are promoted once this many matches used them in place.
USES_TO_PROMOTE = 2


class WritePolicy(Enum):
    """The moments at which a page of tier 1 gets its copy in tier 2."""

    BACK = "back"
    THROUGH = "through"
    THROUGH_SELECTIVE = "through-selective"


@dataclass(frozen=True)
class TierPolicy:
    """The policy of the tiers.

    ``in_place`` allows matches to use copies of tier 2 in place. ``promote`` makes a match copy
    them to tier 1 first. The mover keeps at least the part ``low`` of tier 1's slots free. Once
    fewer are free, it makes ``high`` of them free.
    """

    write: WritePolicy = WritePolicy.BACK
    in_place: bool = True
    promote: bool = False
    low: float = 0.1
    high: float = 0.2


class WantedMoves:
    """Nodes whose paths are to be copied to tier 2 and to tier 1. Not thread-safe.

    A node stands for the path through its last page, even after splits and merges.
    ``pressed`` are arenas of tier 1 with few free slots.
    """

    def __init__(self, policy: TierPolicy) -> None:
        self.policy = policy
        self.to_lower: dict[Node, None] = {}
        self.to_first: dict[Node, None] = {}
        self.pressed: dict[Arena, None] = {}

    def __bool__(self) -> bool:
        """Returns True if anything is wanted."""
        return bool(self.to_lower or self.to_first or self.pressed)

    def reserved(self, arena: Arena, count: int) -> None:
        """Takes note of slots of tier 1 that are taken now."""
        selective = self.policy.write is WritePolicy.THROUGH_SELECTIVE
        left = arena.free_count - count
        if not selective and left < int(arena.slot_count * self.policy.low):
            self.pressed[arena] = None

    def inserted(self, at: Position) -> None:
        """Takes note of pages that were published."""
        if self.policy.write is WritePolicy.THROUGH:
            self.to_lower[at.node] = None

    def matched(self, at: Position, tiers: Tiers) -> None:
        """Takes note of a path that a match handed out, each page in its tier."""
        if self.policy.write is WritePolicy.THROUGH_SELECTIVE:
            self.to_lower[at.node] = None
        if any(tier == LOWER for _, tier in tiers or ()):
            copies = at.node.lower
            if copies is not None:
                copies.uses += 1
            if copies is None or copies.uses >= USES_TO_PROMOTE:
                self.to_first[at.node] = None
