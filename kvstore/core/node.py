"""A node of the radix tree, and how holds stand on it."""

from typing import TYPE_CHECKING, NamedTuple

from kvstore.core.slots import Slots

if TYPE_CHECKING:
    from kvstore.core.holds import Hold
    from kvstore.core.namespace import Namespace


class Anchor:
    """Where a hold stands: on the first ``pages`` pages of ``node``, and all above."""

    __slots__ = ("hold", "node", "pages")

    def __init__(self, hold: "Hold", node: "Node", pages: int) -> None:
        self.hold = hold
        self.node = node
        self.pages = pages
        node.anchors.add(self)

    @property
    def end(self) -> int:
        """Pages from the sequence's beginning through the last one held."""
        return self.node.start + self.pages

    def move(self, node: "Node", pages: int) -> None:
        """Stand elsewhere from now on."""
        self.node.anchors.discard(self)
        self.node = node
        self.pages = pages
        node.anchors.add(self)


class Node:
    """A run of pages: their tokens, their slots, and what continues them.

    ``edge`` holds the tokens of ``slots``'s pages, ``start`` the pages above.
    ``children`` is keyed by the first page's bytes of the child's edge. The root
    has neither edge nor slots. A node out of the index has ``detached`` set and
    its pages belong to its anchors alone.
    """

    __slots__ = (
        "anchors",
        "children",
        "detached",
        "edge",
        "hits",
        "last_use",
        "namespace",
        "number",
        "parent",
        "queued",
        "slots",
        "start",
    )

    def __init__(
        self,
        namespace: "Namespace",
        number: int,
        edge: bytes,
        slots: Slots,
        parent: "Node | None",
        start: int,
    ) -> None:
        self.namespace = namespace
        self.number = number
        self.edge = edge
        self.slots = slots
        self.parent = parent
        self.start = start
        self.children: dict[bytes, Node] = {}
        self.anchors: set[Anchor] = set()
        self.last_use = 0
        self.hits = 0
        self.queued = False
        self.detached = False

    @property
    def held_pages(self) -> int:
        """Leading pages that anchors on this very node hold."""
        return max((anchor.pages for anchor in self.anchors), default=0)


class Position(NamedTuple):
    """A place in a tree: after the first ``pages`` pages of ``node``."""

    node: Node
    pages: int

    @property
    def depth(self) -> int:
        """Pages from the sequence's beginning."""
        return self.node.start + self.pages
