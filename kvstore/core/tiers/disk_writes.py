"""From the tiers that are memory to tier 3: which pages, and what is known to be there.

Decided under the owner's mutex, written by others outside it, finished under it. Which of
the pages are worth a write is theirs to say.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from typing import NamedTuple

from kvstore.core.index.node import Node, Position
from kvstore.core.index.path_hashes import PathDigests, digests_to, kept_end, remember
from kvstore.core.index.radix import ancestor
from kvstore.core.leases.holds import Hold
from kvstore.core.leases.state import CacheState
from kvstore.core.pool.disk import RemovedPrefix, Touch
from kvstore.core.pool.namespace import namespace_of
from kvstore.core.pool.pages import release
from kvstore.core.pool.placement import FIRST, LOWER, Tiers, extended
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


# More bytes than there are.
UNBOUNDED = 1 << 64


class DiskWrites:
    """Names the pages that the disk may want, and those that it must not have any more.

    ``under_way`` are the writes that nobody finished yet.
    """

    def __init__(self, state: CacheState) -> None:
        self._state = state
        self.under_way: dict[Keep, None] = {}

    def keeps_wanted(self) -> bool:
        """Return whether ``plan_keeps`` may have something to do."""
        return self._state.disk is not None and bool(self._state.disk.touches)

    def plan_keeps(self, most: int, room: int = UNBOUNDED) -> list[Keep]:
        """Return what was touched since, ``most`` pages at most; whoever calls has to finish it.

        Whole pages alone, in the order in which they were touched, each as often as it was,
        until it is known to be kept. They come to ``room`` bytes at most, but for one page
        where nothing else is on its way.
        """
        keeps: list[Keep] = []
        disk = self._state.disk
        while disk is not None and disk.touches and most > 0:
            page_bytes = namespace_of(disk.touches[0].node).layout.page_bytes
            fit = min(most, max(room // page_bytes, 0 if self.under_way else 1))
            if fit < 1:
                break
            touch = disk.touches.popleft()
            keep = prepare(touch, fit)
            if keep is None:
                continue
            most -= len(keep.pages)
            room -= len(keep.pages) * page_bytes
            keeps.append(keep)
            self.under_way[keep] = None
            if len(keep.pages) == fit:
                disk.touches.appendleft(touch._replace(start=keep.held_end))
        return keeps

    def keeps_stale(self, keep: Keep) -> bool:
        """Return whether a page of a keep's path left the index since: none of it may be written.

        To be asked right before the pages are given to tier 3, under the same mutex.
        """
        return keep.is_stale

    def finish_keeps(self, keeps: Iterable[Keep], kept_ends: Items[int]) -> None:
        """Let go of keeps, and note through which page of each they are in tier 3 now.

        An end counts pages from the sequence's beginning; at most a keep's ``start`` says that
        none of it is. Raises nothing.
        """
        for keep, end in zip(keeps, kept_ends, strict=True):
            assert self._state.disk is not None  # or none was planned
            del self.under_way[keep]
            if not keep.is_stale:
                at = keep.position_at(keep.held_end)
                # Of a path whose beginning is not known to be kept nothing else is either.
                follows = kept_end(at) >= keep.start and keep.losses == keep.namespace.losses
                remember(at, keep.digests, end if follows else 0)
            release(keep.anchors)

    def forget_kept(self, namespace_digests: Iterable[bytes]) -> None:
        """Note that tier 3 lost pages of namespaces: nothing of them is known to be there.

        Those that are not open are passed over.
        """
        for digest in namespace_digests:
            namespace = (
                None if self._state.disk is None else self._state.disk.namespaces.get(digest)
            )
            if namespace is not None:
                namespace.losses += 1

    def take_removed(self) -> list[RemovedPrefix]:
        """Return what tier 3 must not have any more; whoever calls has to ``finish_removed``."""
        if self._state.disk is None:
            return []
        removed, self._state.disk.removed = self._state.disk.removed, []
        return removed

    def finish_removed(self, removed: Iterable[RemovedPrefix]) -> None:
        """Note that tier 3 answers with none of these any more: loads may begin again."""
        for each in removed:
            assert self._state.disk is not None  # or nothing was removed of it
            self._state.disk.told(each.namespace_digest)
