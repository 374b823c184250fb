"""The interface between the cache and an eviction policy."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from kvstore.core.index.node import Node
from kvstore.core.index.usage import Tail


class Leaf(Protocol):
    """A node in one tier, offered to the policy of that tier. In tier 1 it is the node itself.

    A policy reads it, and writes only ``queued``: its own entry, or False. ``last_use`` and
    ``hits`` are those of the node, whichever tier a match used.
    """

    queued: object

    @property
    def tier(self) -> int:
        """The tier."""
        ...

    @property
    def node(self) -> "Node":
        """The node."""
        ...

    @property
    def parent(self) -> "Leaf | None":
        """The node above in the same tier, even without a copy there, or None for the first."""
        ...

    @property
    def start(self) -> int:
        """The number of pages above the node."""
        ...

    @property
    def last_use(self) -> int:
        """The node's last use, as a number that grows."""
        ...

    @property
    def hits(self) -> int:
        """The number of matches that ended in the node."""
        ...

    @property
    def copy_count(self) -> int:
        """The number of the node's pages with a copy in this tier: always the first ones."""
        ...

    def tail(self) -> "Tail":
        """Returns the last of those copies that were used alike. There MUST be one."""
        ...

    @property
    def held_pages(self) -> int:
        """The number of those copies that holds protect: always the first ones."""
        ...

    @property
    def child_count(self) -> int:
        """The number of children with copies in this tier, in themselves or below."""
        ...

    @property
    def is_leaf(self) -> bool:
        """True if it is in the index, has copies in this tier, and no child has any."""
        ...


class Victim(NamedTuple):
    """The last ``pages`` copies of ``leaf``, which is a leaf by the time its turn comes."""

    leaf: Leaf
    pages: int


class EvictionPolicy(Protocol):
    """The choice of the pages of one arena that go first.

    ``now`` is the time as last heard, in seconds. ``spills`` says that another tier receives
    what goes. Only the policy of the last tier hears of pages that left and came back.
    """

    now: float
    spills: bool

    def offer(self, leaf: Leaf) -> None:
        """Records that a node became a leaf, grew, or lost a hold."""

    def nominate(self, pages: int) -> list[Victim]:
        """Returns victims of exactly ``pages`` pages in total, or none at all.

        No victim is held, and no victim has a page that continues it and stays. Changes nothing
        but the policy's own order.
        """

    def leave(self, leaf: Leaf, pages: int, slot_count: int) -> None:
        """Records that the last ``pages`` pages of a leaf are about to go, to make room.

        ``slot_count`` is the number of the arena's slots.
        """

    def come_back(self, leaf: Leaf, start: int, slot_count: int) -> int:
        """Records that a node's pages from ``start`` on were published.

        Returns how many of them a cache of twice the size would still have had: since each of them
        left, no more pages followed than the arena has slots.
        """


PolicyFactory = Callable[[], EvictionPolicy]
