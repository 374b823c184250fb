"""A node's copies in a tier: those of its first pages.

Tier 1's stand on the node itself, tier 2's on a record that is there while there are any.
"""

from array import array
from typing import TYPE_CHECKING

from kvstore.core.anchors import NO_ANCHORS, Anchor, AnchorSet
from kvstore.core.steps import Tail, tail_of
from kvstore.core.values.slots import Slots

if TYPE_CHECKING:
    from kvstore.core.node import Node


class Copies:
    """A node's copies in one tier. ``slots`` has a place for each page of the node.

    The last ``missing`` of its pages have no copy here, and zero in their place.
    """

    __slots__ = ("anchors", "missing", "queued", "slots")
    tier = 1

    def __init__(self, slots: Slots, missing: int = 0) -> None:
        self.slots = slots
        self.missing = missing
        self.anchors = NO_ANCHORS
        self.queued: object = False

    @property
    def copy_count(self) -> int:
        """How many of the node's pages have a copy here: the first ones."""
        return len(self.slots) - self.missing

    @property
    def held_pages(self) -> int:
        """Leading copies that anchors on these very copies hold."""
        return 0 if self.anchors is NO_ANCHORS else self.anchors.deepest

    def add_anchor(self, anchor: Anchor) -> None:
        """Let an anchor stand here."""
        if self.anchors is NO_ANCHORS:
            self.anchors = AnchorSet()
        self.anchors.add(anchor)

    def copied(self) -> Slots:
        """Return the slots of the copies."""
        return self.slots[: self.copy_count]

    def append_copy(self, slot: int) -> None:
        """Give the first page without a copy one."""
        self.slots[self.copy_count] = slot
        self.missing -= 1

    def cut_copies(self, keep: int) -> Slots:
        """Leave the first ``keep`` copies and return the slots of the others."""
        count = self.copy_count
        slots = self.slots[keep:count]
        self.slots[keep:count] = array("Q", bytes(8 * len(slots)))
        self.missing += len(slots)
        return slots

    def add_pages(self, slots: Slots) -> None:
        """Grow by pages, which have these slots."""
        self.slots.extend(slots)

    def cut_pages(self, keep: int) -> Slots:
        """Leave the first ``keep`` pages; return the slots of the others."""
        slots = self.slots
        if self.missing:
            self.missing = max(self.missing - (len(slots) - keep), 0)
        if keep:
            cut = slots[keep:]
            del slots[keep:]
            return cut
        self.slots = array("Q")
        return slots

    def divide(self, pages: int) -> tuple[Slots, int]:
        """Give the first ``pages`` pages up: return their slots, and how many have no copy."""
        upper = self.slots[:pages]
        missing = max(self.missing - (len(self.slots) - pages), 0)
        self.slots = self.slots[pages:]
        self.missing -= missing
        return upper, missing

    def join(self, upper: "Copies") -> None:
        """Take the copies of the pages just above before its own."""
        self.slots = upper.slots + self.slots
        self.missing += upper.missing

    def clear(self) -> None:
        """Have no pages any more."""
        self.slots, self.missing = array("Q"), 0

    def divide_anchors(self, upper: "Node", node: "Node", pages: int) -> None:
        """Let the anchors at or above a cut stand on the new upper part."""
        for anchor in list(self.anchors):
            if anchor.pages <= pages:
                anchor.move(upper, anchor.pages)
            else:
                anchor.move(node, anchor.pages - pages)


class Lower(Copies):
    """A node's copies in tier 2. ``below`` counts the children that have copies there.

    A page has a copy in tier 2 only if its parent has one. ``uses`` counts matches
    that handed them out in place.
    """

    __slots__ = ("below", "node", "uses")
    tier = 2

    def __init__(self, node: "Node", slots: Slots, missing: int) -> None:
        super().__init__(slots, missing)
        self.node = node
        self.below = 0
        self.uses = 0

    @property
    def parent(self) -> "Lower | None":
        """The copies of the node above; None where it is the root."""
        above = self.node.parent
        return None if above is None else above.lower

    @property
    def start(self) -> int:
        """Pages above the node."""
        return self.node.start

    @property
    def last_use(self) -> int:
        """When the node was last used."""
        return self.node.last_use

    @property
    def hits(self) -> int:
        """How often a match ended in the node."""
        return self.node.hits

    def tail(self) -> Tail:
        """Return the last of the copies here that were used alike; there MUST be one."""
        return tail_of(self.node, self.copy_count)

    @property
    def child_count(self) -> int:
        """How many children have copies in tier 2."""
        return self.below

    @property
    def is_leaf(self) -> bool:
        """Whether it is in the index and its last copy can go: no child has one in tier 2.

        Nor in tier 1, where it is the page's last copy.
        """
        node = self.node
        is_last = node.missing > 0 and bool(node.children)
        return self.copy_count > 0 and not (node.detached or self.below or is_last)

    def emptied(self) -> None:
        """Note that the last of them went: the node has none in tier 2 any more."""
        self.node.lower = None
        if self.parent is not None:
            self.parent.below -= 1
