"""Pages on their way to tier 3: held, so that their bytes stay where they are."""

from collections.abc import Iterator
from typing import NamedTuple

from kvstore.core.holds import Hold
from kvstore.core.index.node import Node, Position
from kvstore.core.index.path_hashes import PathDigests, digests_to, kept_end
from kvstore.core.index.radix import ancestor
from kvstore.core.namespace import namespace_of
from kvstore.core.third_tier import Touch
from kvstore.core.tiers import FIRST, LOWER, Tiers, extended
from kvstore.core.values.slots import INDEX_BITS, INDEX_MASK


class KeepPage(NamedTuple):
    """A whole page; ``end`` counts pages from the beginning through it.

    ``checksum`` is what its bytes come to, ``NO_CHECKSUM`` where nobody said.
    """

    end: int
    slot: int
    checksum: int


class Keep(Hold):
    """Pages of one path that were touched, and that tier 3 is not known to have.

    They are whole pages side by side, from ``start`` on. Of each it names the copy in
    tier 2, where it has one. ``digests`` may be asked outside the owner's mutex: of the
    page that ends at ``end`` with ``through(end)``, of its parent with ``through(end - 1)``.
    """

    __slots__ = ("digests", "losses", "pages", "start")

    def __init__(self, at: Position, start: int) -> None:
        namespace = namespace_of(at.node)
        super().__init__(0, namespace, 0.0, _lower_first(at))
        self.start = start
        self.losses = namespace.losses
        self.digests: PathDigests = digests_to(at, since=start)
        self.stand_at(at)
        self.pages: list[KeepPage] = list(self._find_pages())

    @property
    def namespace_digest(self) -> bytes:
        """The digest of the namespace."""
        return self.namespace.digest

    @property
    def is_stale(self) -> bool:
        """Whether a page of its path left the index since, or it is finished."""
        return not self.anchors or self.anchors[0].node.detached

    def _find_pages(self) -> Iterator[KeepPage]:
        extents = self.namespace.extents
        for end, slot in enumerate(self.slots()[self.start :], start=self.start + 1):
            checksums = extents[slot >> INDEX_BITS].checksums
            yield KeepPage(end, slot, checksums[slot & INDEX_MASK])


def prepare(touch: Touch, most: int) -> Keep | None:
    """Hold the first ``most`` touched pages of a path that tier 3 is not known to have.

    None where there are none, or where tier 3 is to be told of removals first.
    """
    node = touch.node
    while not node.slots and node.parent is not None:
        # It was merged with the node below it, or is gone.
        node = node.parent
    end = min(touch.end, node.start + len(node.slots))
    if node.detached or end <= touch.start or namespace_of(node).removing:
        return None
    at = ancestor(Position(node, len(node.slots)), end)
    start = max(touch.start, kept_end(at))
    if end <= start:
        return None
    return Keep(ancestor(at, min(end, start + most)), start)


def _lower_first(at: Position) -> Tiers:
    """Return tier 2 for the pages of a path that have a copy there, which are the first ones."""
    node: Node | None = at.node
    pages = at.pages
    while node is not None:
        count = min(node.lower_count, pages)
        if count:
            end = node.start + count
            return extended(((end, LOWER),), end, at.depth, FIRST)
        node = node.parent
        pages = 0 if node is None else len(node.slots)
    return None
