"""What an eviction policy sees: a node's pages in the tier that the policy is of."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kvstore.core.index.node import Node
    from kvstore.core.index.usage import Tail


class Leaf(Protocol):
    """A node in one tier, offered to that tier's policy as a leaf. For tier 1 the node itself.

    A policy reads, and writes ``queued`` alone: its own entry, or False. ``last_use``
    and ``hits`` are the node's, whatever the tier that was read.
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
        """The node above in the same tier, though it may have no copy there; None above all."""
        ...

    @property
    def start(self) -> int:
        """Pages above the node."""
        ...

    @property
    def last_use(self) -> int:
        """When the node was last used, as a number that grows."""
        ...

    @property
    def hits(self) -> int:
        """How often a match ended in the node."""
        ...

    @property
    def copy_count(self) -> int:
        """How many of the node's pages have a copy in this tier: the first ones."""
        ...

    def tail(self) -> "Tail":
        """Return the last of those copies that were used alike; there MUST be one."""
        ...

    @property
    def held_pages(self) -> int:
        """How many of those holds protect: the first ones."""
        ...

    @property
    def child_count(self) -> int:
        """How many children have copies in this tier, themselves or below."""
        ...

    @property
    def is_leaf(self) -> bool:
        """Whether it is in the index, has copies in this tier, and no child has any."""
        ...
