"""Which paths are to get copies in another tier soon, in the order in which that was wanted."""

from dataclasses import dataclass
from enum import Enum

from kvstore.core.index.node import Node, Position
from kvstore.core.pool.arena import Arena
from kvstore.core.pool.placement import LOWER, Tiers

# Matches that read copies of tier 2 in place before these are promoted.
USES_TO_PROMOTE = 2


class WritePolicy(Enum):
    """When a page of tier 1 gets its copy in tier 2."""

    BACK = "back"
    THROUGH = "through"
    THROUGH_SELECTIVE = "through-selective"


@dataclass(frozen=True)
class TierPolicy:
    """How the tiers work together.

    ``in_place`` says that copies of tier 2 may be handed out, and ``promote`` that a match
    copies them to tier 1 first. ``low`` is the part of tier 1's slots that the mover keeps
    available at least, and makes ``high`` of where there are fewer.
    """

    write: WritePolicy = WritePolicy.BACK
    in_place: bool = True
    promote: bool = False
    low: float = 0.1
    high: float = 0.2


class WantedMoves:
    """Nodes whose paths are to be copied to tier 2, and to tier 1. Not thread-safe.

    A node names its path through its last page, whatever becomes of it meanwhile.
    ``pressed`` are arenas of tier 1 that few slots are available in.
    """

    def __init__(self, policy: TierPolicy) -> None:
        self.policy = policy
        self.to_lower: dict[Node, None] = {}
        self.to_first: dict[Node, None] = {}
        self.pressed: dict[Arena, None] = {}

    def __bool__(self) -> bool:
        """Whether anything is wanted."""
        return bool(self.to_lower or self.to_first or self.pressed)

    def reserved(self, arena: Arena, count: int) -> None:
        """Take note of slots of tier 1 that are taken now."""
        selective = self.policy.write is WritePolicy.THROUGH_SELECTIVE
        left = arena.free_count - count
        if not selective and left < int(arena.slot_count * self.policy.low):
            self.pressed[arena] = None

    def inserted(self, at: Position) -> None:
        """Take note of pages that were published."""
        if self.policy.write is WritePolicy.THROUGH:
            self.to_lower[at.node] = None

    def matched(self, at: Position, tiers: Tiers) -> None:
        """Take note of a path that was handed out, each page in its tier."""
        if self.policy.write is WritePolicy.THROUGH_SELECTIVE:
            self.to_lower[at.node] = None
        if any(tier == LOWER for _, tier in tiers or ()):
            copies = at.node.lower
            if copies is not None:
                copies.uses += 1
            if copies is None or copies.uses >= USES_TO_PROMOTE:
                self.to_first[at.node] = None
