"""Pages on their way from tier 3 to tier 1, below a path that is held for them."""

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from kvstore.core.holds import Hold
from kvstore.core.index.node import Position
from kvstore.core.index.path_hashes import PathDigests
from kvstore.core.namespace import namespace_of
from kvstore.core.tiers import nearest
from kvstore.core.values.slots import Slots


class LoadPage(NamedTuple):
    """A page to read into a slot; ``end`` counts pages from the beginning through it."""

    end: int
    digest: bytes
    slot: int


class Located(NamedTuple):
    """Where a sequence's cached whole pages end, and what of it could be loaded after that.

    ``page_count`` whole pages, that a match could use. ``digests`` may be asked outside the
    owner's mutex, by one thread at a time.
    """

    namespace_digest: bytes
    end: int
    page_count: int
    digests: PathDigests

    def page_digests(self) -> Iterator[bytes]:
        """Yield the digests of the pages that could be loaded, computed as they are asked for."""
        for end in range(self.end, self.end + self.page_count):
            yield self.digests.through(end + 1)


class Load(Hold):
    """Pages of one path that are to be published in tier 1, from ``start`` on.

    Their slots, ``targets``, are MOVING. ``callers`` counts who asked for it: all but the
    first wait. It belongs to no lease.
    """

    __slots__ = ("callers", "digests", "losses", "removals", "start", "targets")

    def __init__(self, at: Position, digests: PathDigests) -> None:
        namespace = namespace_of(at.node)
        super().__init__(0, namespace, 0.0, nearest(at))
        self.start = at.depth
        self.targets: Slots = array("Q")
        self.digests = digests
        self.removals = namespace.removals
        self.losses = namespace.losses
        self.callers = 1
        if at.depth:
            self.stand_at(at)

    @property
    def end(self) -> int:
        """Pages from the beginning through the last one to be loaded."""
        return self.start + len(self.targets)

    @property
    def namespace_digest(self) -> bytes:
        """The digest of the namespace."""
        return self.namespace.digest

    @property
    def pages(self) -> list[LoadPage]:
        """The pages, in prefix order."""
        ends = range(self.start + 1, self.end + 1)
        return list(map(LoadPage, ends, self.page_digests, self.targets))

    @property
    def page_digests(self) -> list[bytes]:
        """The digests of the pages."""
        return self.digests.between(self.start, self.end)

    @property
    def is_stale(self) -> bool:
        """Whether its path left the index, or pages of the namespace were removed since."""
        left = bool(self.anchors) and self.anchors[0].node.detached
        return left or self.removals != self.namespace.removals
