"""The interface of an index: what the rest of the core needs of either kind."""

from collections.abc import Callable
from typing import Protocol

from kvstore.core.index.node import Node, Position, Tree
from kvstore.core.values.slots import Slots


class Index(Protocol):
    """The cached pages of one namespace, as a tree of nodes below ``root``.

    ``width`` is the number of bytes of a page's tokens. ``nodes`` are all but the root by
    number, in the order of their making. ``joins_nodes`` says if a node may have many pages.
    Not thread-safe. Knows no leases and no states of slots.
    """

    joins_nodes: bool
    width: int
    root: Node
    nodes: dict[int, Node]
    page_count: int

    def descend(self, at: Position, tokens: bytes, pages: int) -> Position:
        """Returns how far the first ``pages`` pages of ``tokens`` are cached below ``at``."""
        ...

    def nearest(self, at: Position, tokens: bytes) -> tuple[Position, int] | None:
        """Returns the page after ``at`` that agrees longest with ``tokens``, and for how many."""
        ...

    def beginning_with(self, at: Position, tokens: bytes) -> Position | None:
        """Returns the end of the page after ``at`` that begins with ``tokens``, or None."""
        ...

    def extend(self, at: Position, tokens: bytes, slots: Slots) -> Position:
        """Adds pages with ``slots`` and ``tokens`` after ``at`` and returns their end."""
        ...

    def hang(self, above: Node, tokens: bytes, slots: Slots, missing: int = 0) -> Node:
        """Adds a node below the end of ``above``, its last ``missing`` pages not in tier 1."""
        ...

    def tops_beginning_with(self, at: Position, tokens: bytes) -> list[Node]:
        """Returns the nodes that start with a page after ``at`` which begins with ``tokens``."""
        ...

    def split(self, node: Node, pages: int) -> Node:
        """Cuts ``node`` after ``pages`` pages and returns the new upper part."""
        ...

    def merge(self, node: Node) -> Node:
        """Joins ``node`` with its only child and returns that child."""
        ...

    def compact(self, node: Node) -> None:
        """Merges ``node`` with its neighbours where nothing tells them apart."""
        ...

    def cut_tail(self, node: Node, pages: int) -> Slots:
        """Removes the last ``pages`` pages of a leaf and returns their slots."""
        ...

    def condemn(self, node: Node) -> None:
        """Hides ``node`` and everything below it from all walks, until they leave the tree."""
        ...

    def detach(self, node: Node) -> list[Node]:
        """Removes ``node`` and everything below it from the tree; parents come before children."""
        ...


IndexFactory = Callable[[Tree, int], Index]
