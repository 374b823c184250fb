"""What the rest of the core needs of an index, whichever kind it is."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kvstore.core.node import Node, Position
from kvstore.core.values.slots import Slots

if TYPE_CHECKING:
    from kvstore.core.namespace import Namespace


class Index(Protocol):
    """The cached pages of one namespace, as a tree of nodes below ``root``.

    ``width`` is the bytes of a page's tokens, ``nodes`` are all but the root by number,
    in the order of their making, and ``joins_nodes`` says whether a node may have many
    pages. Not thread-safe; knows no leases and no slots' states.
    """

    joins_nodes: bool
    width: int
    root: Node
    nodes: dict[int, Node]
    page_count: int

    def descend(self, at: Position, tokens: bytes, pages: int) -> Position:
        """Return how far the first ``pages`` pages of ``tokens`` are cached below ``at``."""
        ...

    def nearest(self, at: Position, tokens: bytes) -> tuple[Position, int] | None:
        """Return the page after ``at`` that agrees longest with ``tokens``, and for how many."""
        ...

    def beginning_with(self, at: Position, tokens: bytes) -> Position | None:
        """Return the end of the page after ``at`` that begins with ``tokens``, or None."""
        ...

    def extend(self, at: Position, tokens: bytes, slots: Slots) -> Position:
        """Add ``slots``'s pages, of ``tokens``, after ``at`` and return their end."""
        ...

    def tops_beginning_with(self, at: Position, tokens: bytes) -> list[Node]:
        """Return the nodes that start with a page after ``at`` which begins with ``tokens``."""
        ...

    def split(self, node: Node, pages: int) -> Node:
        """Cut ``node`` after ``pages`` pages and return the new upper part."""
        ...

    def merge(self, node: Node) -> Node:
        """Join ``node`` with its only child and return that child."""
        ...

    def cut_tail(self, node: Node, pages: int) -> Slots:
        """Remove the last ``pages`` pages of a leaf and return their slots."""
        ...

    def detach(self, node: Node) -> list[Node]:
        """Take ``node`` and all below it out of the tree; parents come before children."""
        ...


IndexFactory = Callable[["Namespace", int], Index]
