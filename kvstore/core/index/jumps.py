"""Jumps over many nodes of a path, which a walk takes in one step.

Pages of KV cache groups are children, so each may end a node of its path. A prompt of 100,000
tokens then has 6,250 nodes with pages of 16 tokens. A walk of so many nodes leaves jumps behind,
by which the next one compares and collects many pages at once. A walk finds the same without
them.

A jump stays true while both of its nodes are in the tree: the pages between them cannot leave
before the lower node, and never change. An index drops the jumps of a node that it forgets.
"""

from array import array
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from kvstore.core.values.slots import Slots


class Jumping(Protocol):
    """A node, as far as its jumps are concerned."""

    slots: Slots
    start: int


NodeT = TypeVar("NodeT", bound=Jumping)


class Jump(Generic[NodeT]):
    """The pages after ``above`` and before ``below``: their tokens, and their slots in tier 1.

    ``tokens`` go on through the first page of ``below``. ``slots`` are None if copies move
    between tiers. ``begin`` and ``end`` count pages from the sequence's beginning. The jump is
    void once a node begins or ends elsewhere.
    """

    __slots__ = ("above", "begin", "below", "end", "slots", "tokens")

    def __init__(self, above: NodeT, below: NodeT, tokens: bytes, slots: "Slots | None") -> None:
        self.above = above
        self.below = below
        self.tokens = tokens
        self.slots = slots
        self.begin = above.start + len(above.slots)
        self.end = below.start

    @property
    def holds(self) -> bool:
        """True if it is between the same pages as when it was made."""
        above = self.above
        return self.below.start == self.end and above.start + len(above.slots) == self.begin

    def leads(self, tokens: bytes, cursor: int, end: int) -> bool:
        """Returns True if its tokens are those from byte ``cursor`` on, before byte ``end``."""
        fits = cursor + len(self.tokens) <= end and tokens.startswith(self.tokens, cursor)
        return fits and self.holds


def slots_between(nodes: Iterable[Jumping]) -> Slots:
    """Returns the slots of some nodes in tier 1."""
    slots = array("Q")
    for node in nodes:
        slots.extend(node.slots)
    return slots
