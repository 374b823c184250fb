"""What every eviction policy does."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from kvstore.core.leaf import Leaf


class Victim(NamedTuple):
    """The last ``pages`` copies of ``leaf``, which is one by the time its turn comes."""

    leaf: Leaf
    pages: int


class EvictionPolicy(Protocol):
    """Chooses which pages of one arena go first. ``now`` is the time as last heard, in seconds.

    ``spills`` says that another tier takes in what goes. Only of the last tier the policy
    is told what left and what came back.
    """

    now: float
    spills: bool

    def offer(self, leaf: Leaf) -> None:
        """Take note of a leaf that has become one, has grown, or of which a hold has gone."""

    def nominate(self, pages: int) -> list[Victim]:
        """Return victims of exactly ``pages`` pages in total, or none at all.

        No page that is held is a victim, and no page whose continuation stays.
        Changes nothing but the policy's own order.
        """

    def leave(self, leaf: Leaf, pages: int, slot_count: int) -> None:
        """Take note that the last ``pages`` pages of a leaf, about to go, make room.

        ``slot_count`` is what the arena has.
        """

    def come_back(self, leaf: Leaf, start: int, slot_count: int) -> int:
        """Take note that a node's pages from ``start`` on were published.

        Returns how many of them had left while so many others did as the arena has
        slots: one of twice the size would have had them still.
        """


PolicyFactory = Callable[[], EvictionPolicy]
