"""A node of the tree: its pages, its copies in each tier, and the holds that are anchored on it."""

from array import array
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from heapq import heappop, heappush
from typing import NamedTuple, Protocol, TypeAlias

from kvstore.core.index.children import NO_CHILDREN, Children
from kvstore.core.index.jumps import Jump
from kvstore.core.index.next_tokens import NextTokens
from kvstore.core.index.page_ids import PageIds
from kvstore.core.index.usage import Step, Tail, tail_of
from kvstore.core.values.page_hash import DIGEST_BYTES
from kvstore.core.values.requests import NO_HINT
from kvstore.core.values.slots import Slots


class PageHashes(NamedTuple):
    """The digests of a node's first pages, one after the other, and the pages in page stores.

    ``kept`` and ``losses`` have an entry for each page store. It is known to have the first
    ``kept`` pages, all of which have their digests here. That is void once the tree's ``losses``
    for this page store differ from those noted here.
    """

    hashes: bytes
    kept: tuple[int, ...]
    losses: tuple[int, ...]

    @property
    def pages(self) -> int:
        """The number of pages with a digest here."""
        return len(self.hashes) // DIGEST_BYTES

    def through(self, pages: int) -> bytes:
        """Returns the digest of the last of the first ``pages`` pages."""
        return self.hashes[(pages - 1) * DIGEST_BYTES : pages * DIGEST_BYTES]

    def cut(self, keep: int) -> "PageHashes | None":
        """Returns the part for the first ``keep`` pages."""
        if not keep:
            return None
        kept = tuple(min(each, keep) for each in self.kept)
        return PageHashes(self.hashes[: keep * DIGEST_BYTES], kept, self.losses)

    def divide(self, pages: int) -> "tuple[PageHashes | None, PageHashes | None]":
        """Returns the part for the first ``pages`` pages, and the part for the pages after them."""
        rest = self.hashes[pages * DIGEST_BYTES :]
        kept = tuple(max(each - pages, 0) for each in self.kept)
        lower = PageHashes(rest, kept, self.losses) if rest else None
        return self.cut(pages), lower

    def kept_in(self, number: int, losses: Sequence[int]) -> int:
        """Returns how many first pages a page store has, unless the tree's ``losses`` changed."""
        return self.kept[number] if self.losses[number] == losses[number] else 0


def joined_hashes(
    upper: PageHashes | None, pages: int, lower: PageHashes | None
) -> PageHashes | None:
    """Returns the digests of ``pages`` pages (``upper``) followed by those of ``lower``.

    If ``lower`` is not None, ``upper`` has the digests of all its pages.
    """
    if upper is None or lower is None:
        return upper
    kept = tuple(
        above + below if above == pages and upper.losses[number] == lower.losses[number] else above
        for number, (above, below) in enumerate(zip(upper.kept, lower.kept, strict=True))
    )
    return PageHashes(upper.hashes + lower.hashes, kept, upper.losses)


# A heap may have this many depths without an anchor, besides as many as have one.
SWEEP_FROM = 16


class Tree(Protocol):
    """The owner of a tree of nodes, as far as the nodes know it.

    ``width`` is the number of bytes of a page's tokens. ``digest`` is the parent of the digests
    of first pages. ``losses`` counts how often each page store lost pages of this tree.
    ``moves_copies`` is true if there are several tiers. ``condemned`` has the keys of condemned
    nodes, as ``condemned.py`` explains.
    """

    number: int
    width: int
    losses: tuple[int, ...]
    condemned: "dict[Node, bytes]"

    @property
    def digest(self) -> bytes:
        """The digest of everything that decides who may share pages of this tree."""
        ...

    @property
    def moves_copies(self) -> bool:
        """True if the slot of a cached page in tier 1 may change."""
        ...

    def leaf_changed(self, node: "Node") -> None:
        """Records that a node may have become a leaf in some tier, or holds less."""
        ...


class Holder(Protocol):
    """A hold on a path, as far as its anchors know it."""

    anchors: "list[Anchor]"

    def stand_above(self, anchor: "Anchor", above: "Position") -> None:
        """Keeps the path through ``above`` held, after the end of an anchor's path was removed."""
        ...

    def pages_leave(self) -> bool:
        """Records that pages of its path leave the index; returns True if it ends with them."""
        ...


class Anchor:
    """The end of a hold in a tier: it holds the first ``pages`` copies of ``node``, and all above.

    ``other`` is the hold's end in the other tier, if the hold has copies of both tiers. That
    anchor is less deep and has no other.
    """

    __slots__ = ("hold", "node", "other", "pages", "tier")

    def __init__(self, hold: "Holder", node: "Node", pages: int, tier: int = 1) -> None:
        self.hold = hold
        self.node = node
        self.pages = pages
        self.tier = tier
        self.other: Anchor | None = None
        copies: Copies = node if tier == 1 else self.copies
        copies.add_anchor(self)

    @property
    def copies(self) -> "Copies":
        """The copies that it holds."""
        return self.node if self.tier == 1 else self.node.copies_in(self.tier)

    @property
    def end(self) -> int:
        """Pages from the sequence's beginning through the last one held."""
        return self.node.start + self.pages

    def move(self, node: "Node", pages: int) -> None:
        """Moves to another place in the same tier."""
        self.copies.anchors.discard(self)
        self.node = node
        self.pages = pages
        self.copies.add_anchor(self)

    def leave(self) -> None:
        """Removes itself from the copies that it holds."""
        copies = self.node if self.tier == 1 else self.copies
        copies.anchors.discard(self)


class AnchorSet(AbstractSet["Anchor"]):
    """The anchors on one node, by depth. Finds the deepest without checking all of them.

    Typical loads: thousands of short pins on a system prompt, or one long-lived deep pin with
    many short ones above it.
    """

    __slots__ = ("_at_depth", "_depths")

    def __init__(self) -> None:
        self._at_depth: dict[int, set[Anchor]] = {}
        # A heap of negated depths. A depth without an anchor is dropped when it reaches the
        # top, or together with all others like it once they are the majority.
        self._depths: list[int] = []

    def add(self, anchor: Anchor) -> None:
        """Adds an anchor at its depth."""
        if anchor.pages not in self._at_depth:
            if len(self._depths) > 2 * len(self._at_depth) + SWEEP_FROM:
                self._depths = sorted(-depth for depth in self._at_depth)
            self._at_depth[anchor.pages] = set()
            heappush(self._depths, -anchor.pages)
        self._at_depth[anchor.pages].add(anchor)

    def discard(self, anchor: Anchor) -> None:
        """Removes an anchor, which MUST be here at its depth."""
        standing = self._at_depth[anchor.pages]
        standing.remove(anchor)
        if not standing:
            del self._at_depth[anchor.pages]

    @property
    def deepest(self) -> int:
        """The number of pages that the deepest anchor holds, or zero without one."""
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


class PageAnchors(set["Anchor"]):
    """The anchors on a node that has one page for ever, such as a page of a KV cache group."""

    __slots__ = ()

    @property
    def deepest(self) -> int:
        """One if there is an anchor, and zero otherwise."""
        return 1 if self else 0


# The anchors of all copies that never had one, as most. Nothing is ever added to it.
NO_ANCHORS = AnchorSet()


class Copies:
    """A node's copies in one tier. ``slots`` has an entry for each page of the node.

    The last ``missing`` pages have no copy in this tier; their entries are zero.
    """

    __slots__ = ("anchors", "missing", "queued", "slots")
    tier = 1

    def __init__(self, slots: Slots, missing: int = 0) -> None:
        self.slots = slots
        self.missing = missing
        self.anchors: AnchorSet | PageAnchors = NO_ANCHORS
        self.queued: object = False

    @property
    def copy_count(self) -> int:
        """The number of the node's pages with a copy in this tier: always the first ones."""
        return len(self.slots) - self.missing

    @property
    def held_pages(self) -> int:
        """The number of leading copies that anchors on these copies hold."""
        return 0 if self.anchors is NO_ANCHORS else self.anchors.deepest

    def add_anchor(self, anchor: Anchor) -> None:
        """Adds an anchor."""
        if self.anchors is NO_ANCHORS:
            self.anchors = AnchorSet()
        self.anchors.add(anchor)

    def copied(self) -> Slots:
        """Returns the slots of the copies."""
        return self.slots[: self.copy_count]

    def append_copies(self, slots: Slots) -> None:
        """Adds copies of the first pages without one."""
        count = self.copy_count
        self.slots[count : count + len(slots)] = slots
        self.missing -= len(slots)

    def cut_copies(self, keep: int) -> Slots:
        """Keeps the first ``keep`` copies and returns the slots of the others."""
        count = self.copy_count
        slots = self.slots[keep:count]
        self.slots[keep:count] = array("Q", bytes(8 * len(slots)))
        self.missing += len(slots)
        return slots

    def add_pages(self, slots: Slots) -> None:
        """Adds pages with these slots."""
        self.slots.extend(slots)

    def cut_pages(self, keep: int) -> Slots:
        """Keeps the first ``keep`` pages and returns the slots of the others."""
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
        """Removes the first ``pages`` pages; returns their slots, and how many have no copy."""
        upper = self.slots[:pages]
        missing = max(self.missing - (len(self.slots) - pages), 0)
        self.slots = self.slots[pages:]
        self.missing -= missing
        return upper, missing

    def join(self, upper: "Copies") -> None:
        """Puts the copies of the pages just above before its own."""
        self.slots = upper.slots + self.slots
        self.missing += upper.missing

    def clear(self) -> None:
        """Removes all pages."""
        self.slots, self.missing = array("Q"), 0

    def divide_anchors(self, upper: "Node", node: "Node", pages: int) -> None:
        """Moves the anchors at or above a cut to the new upper part."""
        for anchor in list(self.anchors):
            if anchor.pages <= pages:
                anchor.move(upper, anchor.pages)
            else:
                anchor.move(node, anchor.pages - pages)


class Lower(Copies):
    """A node's copies in tier 2. ``below`` counts the children that have copies there.

    A page has a copy in tier 2 only if its parent has one. ``uses`` counts the matches that
    handed these copies out in place.
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
        """The copies of the node above, or None if that is the root."""
        above = self.node.parent
        return None if above is None else above.lower

    @property
    def start(self) -> int:
        """The number of pages above the node."""
        return self.node.start

    @property
    def last_use(self) -> int:
        """The node's last use."""
        return self.node.last_use

    @property
    def hits(self) -> int:
        """The number of matches that ended in the node."""
        return self.node.hits

    def tail(self) -> Tail:
        """Returns the last copies here that were used alike. There MUST be one."""
        return tail_of(self.node, self.copy_count)

    @property
    def child_count(self) -> int:
        """The number of children with copies in tier 2."""
        return self.below

    @property
    def is_leaf(self) -> bool:
        """True if the node is in the index and its last copy here can go.

        That needs a child without a copy in tier 2, and without one in tier 1 if this copy is the
        page's last.
        """
        node = self.node
        is_last = node.missing > 0 and bool(node.children)
        return self.copy_count > 0 and not (node.detached or self.below or is_last)

    def emptied(self) -> None:
        """Removes this record from the node, after the last copy left."""
        self.node.lower = None
        if self.parent is not None:
            self.parent.below -= 1


# A named tuple's constructor costs a Python frame: with it an eviction takes 8 % longer.
_new_tuple = tuple.__new__


class Node(Copies):
    """A run of pages: their tokens, their slots, and the nodes that continue them.

    ``edge`` has the pages' tokens, and ``start`` is the number of pages above. ``slots`` and
    the other fields of ``Copies`` are those of tier 1; ``lower`` has the copies in tier 2, if
    any. ``bare`` counts the children without a copy in tier 1, in themselves and below.
    ``children`` are keyed by the bytes of their first page.

    A partial page is a node of its own. Its edge is shorter than a page, and nothing continues
    it. The root has neither edge nor slots. A node out of the index is ``detached``: only its
    anchors keep its pages. ``next_tokens`` are those after its pages, or None. ``usage.py``
    explains and writes ``last_use``, ``hits``, ``hint`` and ``steps``. ``page_hashes`` has the
    digests of its pages, or is None. ``page_ids`` are None without a journal. ``jump_down`` and
    ``jump_up`` lead over many nodes below and above it, or are None.
    """

    __slots__ = (
        "bare",
        "children",
        "detached",
        "edge",
        "hint",
        "hits",
        "jump_down",
        "jump_up",
        "last_use",
        "lower",
        "next_tokens",
        "number",
        "page_hashes",
        "page_ids",
        "parent",
        "start",
        "steps",
        "tree",
    )

    def __init__(
        self,
        tree: "Tree",
        number: int,
        edge: bytes,
        slots: Slots,
        parent: "Node | None",
        start: int,
    ) -> None:
        super().__init__(slots)
        self.tree = tree
        self.number = number
        self.edge = edge
        self.parent = parent
        self.start = start
        self.children: Children[Node] = NO_CHILDREN
        self.lower: Lower | None = None
        self.page_hashes: PageHashes | None = None
        self.page_ids: PageIds | None = None
        self.jump_down: Jump[Node] | None = None
        self.jump_up: Jump[Node] | None = None
        self.bare = 0
        self.next_tokens: NextTokens | None = None
        self.last_use = 0
        self.hits = 0
        self.hint = NO_HINT
        self.steps: list[Step] | None = None
        self.detached = False

    @property
    def node(self) -> "Node":
        """Itself, as the node of its copies in tier 1."""
        return self

    def tail(self) -> Tail:
        """Returns the last copies in tier 1 that were used alike. There MUST be one."""
        end = len(self.slots) - self.missing
        if self.steps is not None:
            return tail_of(self, end)
        return _new_tuple(Tail, (0, end, self.last_use, self.hits, self.hint))

    @property
    def child_count(self) -> int:
        """The number of children with copies in tier 1, in themselves or below."""
        return len(self.children) - self.bare

    @property
    def is_leaf(self) -> bool:
        """True if it is in the index, has copies in tier 1, and no child has any."""
        has_copies = len(self.slots) > self.missing
        return has_copies and not self.detached and len(self.children) == self.bare

    @property
    def is_bare(self) -> bool:
        """True if neither it nor anything below has a copy in tier 1."""
        return len(self.slots) == self.missing and len(self.children) == self.bare

    @property
    def copied_pages(self) -> int:
        """The number of its pages with a copy in some tier: always the first ones."""
        lower = 0 if self.lower is None else self.lower.copy_count
        return max(self.copy_count, lower)

    @property
    def lower_count(self) -> int:
        """The number of its pages with a copy in tier 2: always the first ones."""
        return 0 if self.lower is None else self.lower.copy_count

    def copied_pages_beside(self, tier: int) -> int:
        """Returns how many of its pages have a copy in the other tier."""
        return self.lower_count if tier == self.tier else self.copy_count

    def copies_in(self, tier: int) -> "Node | Lower":
        """Returns its copies in a tier, which MUST exist."""
        if tier == 1:
            return self
        assert self.lower is not None  # the caller knows of a copy there
        return self.lower

    def leaves(self) -> "list[Node | Lower]":
        """Returns what policies see of it: one leaf for each tier with copies of it."""
        return [self] if self.lower is None else [self, self.lower]

    def add_pages(self, slots: Slots) -> None:
        """Adds pages with these slots in tier 1. All pages before MUST have a copy there."""
        super().add_pages(slots)
        if self.lower is not None:
            self.lower.add_pages(array("Q", bytes(8 * len(slots))))
            self.lower.missing += len(slots)

    def cut_pages(self, keep: int) -> Slots:
        """Keeps the first ``keep`` pages; returns the slots that the others had in tier 1."""
        if self.page_hashes is not None:
            self.page_hashes = self.page_hashes.cut(keep)
        if self.page_ids is not None and keep:
            self.page_ids.cut(keep)
        if self.lower is not None:
            self.lower.cut_pages(keep)
        return super().cut_pages(keep)

    def give_upper(self, upper: "Node", pages: int) -> None:
        """Gives the copies and anchors of the first ``pages`` pages to the new node above."""
        if self.page_hashes is not None:
            upper.page_hashes, self.page_hashes = self.page_hashes.divide(pages)
        if self.page_ids is not None:
            upper.page_ids = self.page_ids.divide(pages)
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
        """Puts the copies of the node above, which nobody holds, before its own.

        If the node above lacks some copies in a tier, this node has none there. The node above
        keeps no pages.
        """
        self.page_hashes = joined_hashes(upper.page_hashes, len(upper.slots), self.page_hashes)
        upper.page_hashes = None
        if upper.page_ids is not None and self.page_ids is not None:
            self.page_ids.join(upper.page_ids, len(upper.slots))
            upper.page_ids = None
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
        """Updates the nodes above: it, or something below it, has a first copy in tier 1."""
        node = self.parent
        while node is not None:
            was_bare = node.is_bare
            node.bare -= 1
            if not was_bare:
                return
            node = node.parent

    def emptied(self) -> None:
        """Updates the nodes above: it and everything below it have no copy in tier 1 any more."""
        node = self.parent
        while node is not None:
            node.bare += 1
            if not node.is_bare:
                return
            node = node.parent

    def add_ids(self, start: int, base: int) -> None:
        """Gives the pages from ``start`` on their ids, which begin at ``base``."""
        if self.page_ids is None:
            self.page_ids = PageIds(base)
        else:
            self.page_ids.append(start, base)

    def add_child(self, key: bytes, child: "Node") -> None:
        """Stores a child under the bytes of its first page, in place of the child there."""
        if self.children is NO_CHILDREN:
            self.children = Children()
        self.children.add(key, child)

    def forget_child(self, child: "Node") -> None:
        """Removes a child, just unhooked, from the counts."""
        if len(child.slots) == child.missing and child.is_bare:
            self.bare -= 1
        elif len(self.children) == self.bare and self.is_bare:
            self.emptied()
        if child.lower is not None and self.lower is not None:
            self.lower.below -= 1


# The copies of a node in one tier or the other.
AnyCopies: TypeAlias = Node | Lower


class Position(NamedTuple):
    """A place in a tree: after the first ``pages`` pages of ``node``."""

    node: Node
    pages: int

    @property
    def depth(self) -> int:
        """Pages from the sequence's beginning."""
        return self.node.start + self.pages

    @property
    def page_id(self) -> int:
        """The id of the last page, or zero at the beginning. There MUST be a journal."""
        ids = self.node.page_ids
        return 0 if ids is None else ids.at(self.pages - 1)

    def find_next_token(self, tail: bytes) -> int | None:
        """Returns the next token stored at the end of ``tail`` after this place, or None."""
        next_tokens = self.node.next_tokens
        return None if next_tokens is None else next_tokens.find(self.depth, tail)

    def store_next_token(self, tail: bytes, token: int) -> None:
        """Stores a next token at the end of ``tail`` after this place, which MUST be cached."""
        if self.node.next_tokens is None:
            self.node.next_tokens = NextTokens()
        self.node.next_tokens.store(self.depth, tail, token)
