"""A node of the radix tree, and how holds stand on it."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from kvstore.core.children import Children
from kvstore.core.ends import Ends
from kvstore.core.hints import NO_HINT
from kvstore.core.slots import Slots

if TYPE_CHECKING:
    from kvstore.core.holds import Hold
    from kvstore.core.namespace import Namespace
    from kvstore.core.steps import Step


# Depths without an anchor that a heap may have, besides as many as with one.
SWEEP_FROM = 16


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


class AnchorSet(AbstractSet["Anchor"]):
    """The anchors on one node, by depth: the deepest is found without looking at all.

    Thousands may stand on the node of a system prompt, and go one by one; or one
    deep down for ever, above which they come and go. Empty, it is smaller than a set.
    """

    __slots__ = ("_at_depth", "_depths")

    def __init__(self) -> None:
        self._at_depth: dict[int, set[Anchor]] = {}
        # A heap of negated depths; one that has no anchor any more is dropped when it is met
        # at the top, or with all such once they are the most of it.
        self._depths: list[int] = []

    def add(self, anchor: Anchor) -> None:
        """Add an anchor at its depth."""
        if anchor.pages not in self._at_depth:
            if len(self._depths) > 2 * len(self._at_depth) + SWEEP_FROM:
                self._depths = sorted(-depth for depth in self._at_depth)
            self._at_depth[anchor.pages] = set()
            heappush(self._depths, -anchor.pages)
        self._at_depth[anchor.pages].add(anchor)

    def discard(self, anchor: Anchor) -> None:
        """Remove an anchor, which MUST stand here at its depth."""
        standing = self._at_depth[anchor.pages]
        standing.remove(anchor)
        if not standing:
            del self._at_depth[anchor.pages]

    @property
    def deepest(self) -> int:
        """Pages that the deepest anchor holds; zero without one."""
        while self._depths and -self._depths[0] not in self._at_depth:
            heappop(self._depths)
        return -self._depths[0] if self._depths else 0

    def __len__(self) -> int:
        return sum(len(standing) for standing in self._at_depth.values())

    def __iter__(self) -> Iterator[Anchor]:
        for standing in self._at_depth.values():
            yield from standing

    def __contains__(self, anchor: object) -> bool:
        return isinstance(anchor, Anchor) and anchor in self._at_depth.get(anchor.pages, ())


class Node:
    """A run of pages: their tokens, their slots, and what continues them.

    ``edge`` holds the tokens of ``slots``'s pages, ``start`` the pages above.
    ``children`` is keyed by the first page's bytes of the child's edge. A partial
    page is a node of its own, whose edge is shorter than a page, and which nothing
    continues. The root has neither edge nor slots. A node out of the index has
    ``detached`` set and its pages belong to its anchors alone. ``ends`` are the
    next tokens stored after its pages, None without any. ``last_use``, ``hits``,
    ``hint`` and ``steps`` are explained, and written, in ``steps.py``.
    """

    __slots__ = (
        "anchors",
        "children",
        "detached",
        "edge",
        "ends",
        "hint",
        "hits",
        "last_use",
        "namespace",
        "number",
        "parent",
        "queued",
        "slots",
        "start",
        "steps",
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
        self.children = Children()
        self.anchors = AnchorSet()
        self.ends: Ends | None = None
        self.last_use = 0
        self.hits = 0
        self.hint = NO_HINT
        self.steps: list[Step] | None = None
        self.queued: object = False
        self.detached = False

    # What makes it a ``Leaf``, as which policies see it.

    @property
    def node(self) -> "Node":
        """Itself."""
        return self

    @property
    def copy_count(self) -> int:
        """How many of its pages have a copy."""
        return len(self.slots)

    @property
    def held_pages(self) -> int:
        """Leading pages that anchors on this very node hold."""
        return self.anchors.deepest

    @property
    def child_count(self) -> int:
        """How many children it has."""
        return len(self.children)

    @property
    def is_leaf(self) -> bool:
        """Whether it is in the index, has pages and nothing continues it."""
        return bool(self.copy_count) and not self.detached and not self.child_count


class Position(NamedTuple):
    """A place in a tree: after the first ``pages`` pages of ``node``."""

    node: Node
    pages: int

    @property
    def depth(self) -> int:
        """Pages from the sequence's beginning."""
        return self.node.start + self.pages
