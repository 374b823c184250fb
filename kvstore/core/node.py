"""A node of the radix tree, which is its own copies in tier 1 too."""

from array import array
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kvstore.core.chain import Chain, joined
from kvstore.core.children import NO_CHILDREN, Children
from kvstore.core.copies import Copies, Lower
from kvstore.core.ends import Ends
from kvstore.core.steps import Tail, tail_of
from kvstore.core.values.requests import NO_HINT
from kvstore.core.values.slots import Slots

if TYPE_CHECKING:
    from kvstore.core.namespace import Namespace
    from kvstore.core.steps import Step

_new_tuple = tuple.__new__


class Node(Copies):
    """A run of pages: their tokens, their slots, and what continues them.

    ``edge`` holds the pages' tokens, ``start`` the pages above. ``slots`` and what
    else it has as ``Copies`` are of tier 1, ``lower`` are its copies in tier 2, if any.
    ``bare`` counts the children of whose pages none has a copy in tier 1, nor any below.
    ``children`` is keyed by the first page's bytes of the child's edge. A partial
    page is a node of its own, whose edge is shorter than a page, and which nothing
    continues. The root has neither edge nor slots. A node out of the index has
    ``detached`` set and its pages belong to its anchors alone. ``ends`` are the
    next tokens stored after its pages, None without any. ``last_use``, ``hits``,
    ``hint`` and ``steps`` are explained, and written, in ``steps.py``. ``chain`` is what
    tier 3 needs of it, None without.
    """

    __slots__ = (
        "bare",
        "chain",
        "children",
        "detached",
        "edge",
        "ends",
        "hint",
        "hits",
        "last_use",
        "lower",
        "namespace",
        "number",
        "parent",
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
        super().__init__(slots)
        self.namespace = namespace
        self.number = number
        self.edge = edge
        self.parent = parent
        self.start = start
        self.children: Children = NO_CHILDREN
        self.lower: Lower | None = None
        self.chain: Chain | None = None
        self.bare = 0
        self.ends: Ends | None = None
        self.last_use = 0
        self.hits = 0
        self.hint = NO_HINT
        self.steps: list[Step] | None = None
        self.detached = False

    @property
    def node(self) -> "Node":
        """Itself."""
        return self

    def tail(self) -> Tail:
        """Return the last of its copies in tier 1 that were used alike; there MUST be one."""
        end = len(self.slots) - self.missing
        if self.steps is not None:
            return tail_of(self, end)
        return _new_tuple(Tail, (0, end, self.last_use, self.hits, self.hint))

    @property
    def child_count(self) -> int:
        """How many children have copies in tier 1, themselves or below."""
        return len(self.children) - self.bare

    @property
    def is_leaf(self) -> bool:
        """Whether it is in the index, has copies in tier 1 and no child has any."""
        has_copies = len(self.slots) > self.missing
        return has_copies and not self.detached and len(self.children) == self.bare

    @property
    def is_bare(self) -> bool:
        """Whether neither it nor anything below has a copy in tier 1."""
        return len(self.slots) == self.missing and len(self.children) == self.bare

    @property
    def copied_pages(self) -> int:
        """How many of its pages have a copy in some tier: the first ones."""
        lower = 0 if self.lower is None else self.lower.copy_count
        return max(self.copy_count, lower)

    @property
    def lower_count(self) -> int:
        """How many of its pages have a copy in tier 2: the first ones."""
        return 0 if self.lower is None else self.lower.copy_count

    def copied_pages_beside(self, tier: int) -> int:
        """How many of its pages have a copy in the other tier."""
        return self.lower_count if tier == self.tier else self.copy_count

    def copies_in(self, tier: int) -> "Node | Lower":
        """Return its copies in a tier, which MUST be there."""
        if tier == 1:
            return self
        assert self.lower is not None  # who asks knows of a copy there
        return self.lower

    def leaves(self) -> "list[Node | Lower]":
        """Return what policies see of it: one for each tier that it has copies in."""
        return [self] if self.lower is None else [self, self.lower]

    def add_pages(self, slots: Slots) -> None:
        """Grow by pages with these slots in tier 1; all pages before MUST have a copy there."""
        super().add_pages(slots)
        if self.lower is not None:
            self.lower.add_pages(array("Q", bytes(8 * len(slots))))
            self.lower.missing += len(slots)

    def cut_pages(self, keep: int) -> Slots:
        """Leave the first ``keep`` pages; return the slots that the others had in tier 1."""
        if self.chain is not None:
            self.chain = self.chain.cut(keep)
        if self.lower is not None:
            self.lower.cut_pages(keep)
        return super().cut_pages(keep)

    def give_upper(self, upper: "Node", pages: int) -> None:
        """Give the copies and anchors of the first ``pages`` pages to the new node above."""
        if self.chain is not None:
            upper.chain, self.chain = self.chain.divide(pages)
        upper.slots, upper.missing = self.divide(pages)
        upper.bare = int(self.is_bare)
        if self.lower is not None:
            upper.lower = Lower(upper, *self.lower.divide(pages))
            upper.lower.uses = self.lower.uses
            upper.lower.below = int(self.lower.copy_count > 0)
            self.lower.divide_anchors(upper, self, pages)
            if not self.lower.copy_count:
                self.lower = None
        self.divide_anchors(upper, self, pages)

    def take_upper(self, upper: "Node") -> None:
        """Take the copies of the node above, which nobody holds, before its own.

        Where that one lacks some, it has none after them. That one is left without pages.
        """
        self.chain, upper.chain = joined(upper.chain, len(upper.slots), self.chain), None
        if upper.lower is not None:
            width = len(self.slots)
            lower = self.lower or Lower(self, array("Q", bytes(8 * width)), width)
            lower.join(upper.lower)
            upper.lower.clear()
            self.lower, upper.lower = lower, None
        self.join(upper)
        upper.clear()
        upper.bare = 0

    def cover(self) -> None:
        """Note that it, or something below, has a first copy in tier 1: it is bare no more."""
        node = self.parent
        while node is not None:
            was_bare = node.is_bare
            node.bare -= 1
            if not was_bare:
                return
            node = node.parent

    def emptied(self) -> None:
        """Note that it has no copy in tier 1 any more, nor anything below: it is bare."""
        node = self.parent
        while node is not None:
            node.bare += 1
            if not node.is_bare:
                return
            node = node.parent

    def add_child(self, key: bytes, child: "Node") -> None:
        """Let a child stand under its first page's bytes, instead of whatever stood there."""
        if self.children is NO_CHILDREN:
            self.children = Children()
        self.children.add(key, child)

    def forget_child(self, child: "Node") -> None:
        """Leave a child that was just unhooked out of the counts."""
        if len(child.slots) == child.missing and child.is_bare:
            self.bare -= 1
        elif len(self.children) == self.bare and self.is_bare:
            self.emptied()
        if child.lower is not None and self.lower is not None:
            self.lower.below -= 1


# A node's copies in one tier or the other.
AnyCopies: TypeAlias = Node | Lower


class Position(NamedTuple):
    """A place in a tree: after the first ``pages`` pages of ``node``."""

    node: Node
    pages: int

    @property
    def depth(self) -> int:
        """Pages from the sequence's beginning."""
        return self.node.start + self.pages
