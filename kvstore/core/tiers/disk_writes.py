"""Disk writes: from memory to the disk, held while they are written.

The core decides under its owner's mutex; others write outside it, and finish under it. They
also decide which of the pages are worth a write.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from typing import NamedTuple

from kvstore.core.cache_state import CacheState
from kvstore.core.index.condemned import has_left
from kvstore.core.index.node import Node, Position
from kvstore.core.index.path_hashes import PathHashes, hashes_to, kept_end, remember
from kvstore.core.index.radix import ancestor
from kvstore.core.leases.holds import Hold
from kvstore.core.pool.disk_state import RemovedPrefix, Touch, TouchQueue
from kvstore.core.pool.namespace import namespace_of
from kvstore.core.pool.pages import release
from kvstore.core.pool.placement import FIRST, LOWER, Tiers, extended
from kvstore.core.values.slots import INDEX_BITS, INDEX_MASK


class WritePage(NamedTuple):
    """A whole page. ``end`` counts pages from the beginning through it.

    ``checksum`` is that of its bytes, or ``NO_CHECKSUM``.
    """

    end: int
    slot: int
    checksum: int


class DiskWrite(Hold):
    """A hold on pages of one path that were touched and that the disk is not known to have.

    They are consecutive whole pages, from ``start`` on. Each is named by its copy in tier 2, if
    it has one there. ``digests`` may be asked outside the owner's mutex: ``through(end)`` for the
    page that ends at ``end``, and ``through(end - 1)`` for its parent.
    """

    __slots__ = ("digests", "losses", "number", "pages", "start")

    def __init__(self, at: Position, start: int, number: int = 0) -> None:
        namespace = namespace_of(at.node)
        super().__init__(0, namespace, 0.0, _lower_first(at))
        self.start = start
        self.number = number
        self.losses = namespace.losses[number]
        self.digests: PathHashes = hashes_to(at, since=start)
        self.stand_at(at)
        self.pages: list[WritePage] = list(self._find_pages())

    @property
    def namespace_digest(self) -> bytes:
        """The digest of the namespace."""
        return self.namespace.digest

    @property
    def is_stale(self) -> bool:
        """True if a page of its path left the index since, or if it is finished."""
        return not self.anchors or has_left(self.anchors[0].node)

    def _find_pages(self) -> Iterator[WritePage]:
        extents = self.namespace.extents
        for end, slot in enumerate(self.slots()[self.start :], start=self.start + 1):
            checksums = extents[slot >> INDEX_BITS].checksums
            yield WritePage(end, slot, checksums[slot & INDEX_MASK])


def prepare(touch: Touch, most: int, number: int = 0) -> DiskWrite | None:
    """Holds the first ``most`` touched pages of a path that a page store is not known to have.

    Returns None if there are none, or if removals have to be reported to it first.
    """
    node = touch.node
    while not node.slots and node.parent is not None:
        # It was merged with the node below it, or it left.
        node = node.parent
    end = min(touch.end, node.start + len(node.slots))
    if has_left(node) or end <= touch.start or namespace_of(node).removing[number]:
        return None
    at = ancestor(Position(node, len(node.slots)), end)
    start = max(touch.start, kept_end(at, number))
    if end <= start:
        return None
    return DiskWrite(ancestor(at, min(end, start + most)), start, number)


def _lower_first(at: Position) -> Tiers:
    """Returns tier 2 for the pages of a path with a copy there, which are the first ones."""
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
# Pages of a tenant that are written before it is another tenant's turn.
TURN_PAGES = 16


class DiskWrites:
    """Names the pages that the disk may want, and those that it must not have any more.

    ``under_way`` are the writes that nobody finished yet.
    """

    def __init__(self, state: CacheState) -> None:
        self._state = state
        self.under_way: dict[DiskWrite, None] = {}

    def writes_wanted(self, number: int = 0) -> bool:
        """Returns True if ``plan_writes`` may have something to do for a page store."""
        return self._state.disk is not None and bool(self._state.disk.touches[number])

    def plan_writes(self, most: int, room: int = UNBOUNDED, number: int = 0) -> list[DiskWrite]:
        """Returns at most ``most`` touched pages for page store ``number``, to be finished.

        Only whole pages, in the order of their tenant's touches, each as often as it was touched
        until it is known to be kept. Tenants take turns of ``TURN_PAGES``. The pages' size is at
        most ``room`` bytes, except for one page if no other is on its way.
        """
        writes: list[DiskWrite] = []
        disk = self._state.disk
        touches = TouchQueue() if disk is None else disk.touches[number]
        is_alone = not any(each.number == number for each in self.under_way)
        while touches and most > 0:
            turn = min(most, TURN_PAGES) if touches.is_shared else most
            touch = touches.popleft()
            namespace = namespace_of(touch.node)
            page_bytes, tenant = namespace.layout.page_bytes, namespace.tenant
            fit = min(turn, max(room // page_bytes, is_alone))
            if fit < 1:
                touches.put_back(touch, tenant)
                break
            write = prepare(touch, fit, number)
            if write is None:
                continue
            most -= len(write.pages)
            room -= len(write.pages) * page_bytes
            writes.append(write)
            is_alone = False
            self.under_way[write] = None
            if len(write.pages) == fit:
                touches.put_back(touch._replace(start=write.held_end), tenant)
        return writes

    def bytes_under_way(self, number: int = 0) -> int:
        """Returns the bytes of the pages that writes to a page store hold."""
        return sum(
            len(each.pages) * each.namespace.layout.page_bytes
            for each in self.under_way
            if each.number == number
        )

    def write_is_stale(self, write: DiskWrite) -> bool:
        """Returns True if a page of a write's path left the index: none of it may be written.

        Has to be asked right before the pages are given to the disk, under the same mutex.
        """
        return write.is_stale

    def finish_writes(self, writes: Iterable[DiskWrite], kept_ends: Items[int]) -> None:
        """Releases writes, and records through which page of each the disk has them now.

        An end counts pages from the sequence's beginning. An end of at most a write's ``start``
        means that the disk has none of it. Raises nothing.
        """
        for write, end in zip(writes, kept_ends, strict=True):
            assert self._state.disk is not None  # or none was planned
            del self.under_way[write]
            if not write.is_stale:
                at = write.position_at(write.held_end)
                # Pages are known to be kept only if all pages before them are.
                number = write.number
                follows = kept_end(at, number) >= write.start
                follows = follows and write.losses == write.namespace.losses[number]
                remember(at, write.digests, end if follows else 0, number)
            release(write.anchors)

    def forget_kept(self, namespace_digests: Iterable[bytes], number: int = 0) -> None:
        """Records that a page store lost pages of namespaces: it is not known to have any.

        Skips namespaces that are not open.
        """
        for digest in namespace_digests:
            namespace = (
                None if self._state.disk is None else self._state.disk.namespaces.get(digest)
            )
            if namespace is not None:
                namespace.lose(number)

    def write_nothing(self, number: int) -> None:
        """Drops all touches for a page store from now on, since nothing is written to it."""
        if self._state.disk is not None:
            self._state.disk.touches[number] = TouchQueue(0)

    def take_removed(self, number: int = 0) -> list[RemovedPrefix]:
        """Returns the removals for a page store. The caller has to ``finish_removed`` them."""
        if self._state.disk is None:
            return []
        every = self._state.disk.removed
        removed, every[number] = every[number], []
        return removed

    def finish_removed(self, removed: Iterable[RemovedPrefix], number: int = 0) -> None:
        """Records that a page store answers with none of these any more.

        Reads from it may begin again.
        """
        for each in removed:
            assert self._state.disk is not None  # or nothing was removed of it
            self._state.disk.told(each, number)
