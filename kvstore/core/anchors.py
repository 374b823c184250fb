"""Where holds stand on the copies of nodes."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvstore.core.copies import Copies
    from kvstore.core.holds import Hold
    from kvstore.core.node import Node


# Depths without an anchor that a heap may have, besides as many as with one.
SWEEP_FROM = 16


class Anchor:
    """Where a hold stands in a tier: on the first ``pages`` copies of ``node``, and all above.

    ``other`` is where it stands in the other tier, if the path has copies of both that
    it holds; that one is not as deep, and has no other.
    """

    __slots__ = ("hold", "node", "other", "pages", "tier")

    def __init__(self, hold: "Hold", node: "Node", pages: int, tier: int = 1) -> None:
        self.hold = hold
        self.node = node
        self.pages = pages
        self.tier = tier
        self.other: Anchor | None = None
        copies: Copies = node if tier == 1 else self.copies
        copies.add_anchor(self)

    @property
    def copies(self) -> "Copies":
        """The copies that it stands on."""
        return self.node if self.tier == 1 else self.node.copies_in(self.tier)

    @property
    def end(self) -> int:
        """Pages from the sequence's beginning through the last one held."""
        return self.node.start + self.pages

    def move(self, node: "Node", pages: int) -> None:
        """Stand elsewhere from now on, in the same tier."""
        self.copies.anchors.discard(self)
        self.node = node
        self.pages = pages
        self.copies.add_anchor(self)

    def leave(self) -> None:
        """Stand nowhere any more."""
        copies = self.node if self.tier == 1 else self.copies
        copies.anchors.discard(self)


class AnchorSet(AbstractSet["Anchor"]):
    """The anchors on one node, by depth: the deepest is found without looking at all.

    Thousands may stand on the node of a system prompt, and go one by one; or one
    deep down for ever, above which they come and go.
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


# Of all copies that never had an anchor, as most; nothing is added to it.
NO_ANCHORS = AnchorSet()
