"""Reads of KV cache groups' pages: from the disk to tier 1, for the windows of a match.

The pages that a match lacks at the end of its cached path are read all together, or none. The core
decides under its owner's mutex; others read outside it, and finish under it.
"""

from array import array
from collections.abc import Sequence as Items
from typing import NamedTuple

from kvstore.core.cache_state import CacheState
from kvstore.core.index.children import NO_CHILDREN
from kvstore.core.index.node import Position
from kvstore.core.index.path_hashes import PathHashes, hashes_to
from kvstore.core.index.radix import ancestor
from kvstore.core.leases.holds import Hold
from kvstore.core.pool.namespace import Namespace, namespace_of
from kvstore.core.pool.pages import publish, release
from kvstore.core.pool.placement import nearest
from kvstore.core.tiers.disk_reads import ReadPage, take_targets, write_loaded
from kvstore.core.tiers.disk_writes import UNBOUNDED
from kvstore.core.values.event_log import Cause
from kvstore.core.values.group_pages import group_marker
from kvstore.core.values.page_hash import page_digest
from kvstore.core.values.requests import NO_HINT, Caller, MatchOptions, Sequence
from kvstore.core.values.slots import INDEX_BITS, Slots, SlotState
from kvstore.core.verbs.group_windows import require_windows
from kvstore.core.verbs.lookup import cached_end, matchable_pages


class LackingPage(NamedTuple):
    """A group's page that is not cached. ``end`` is that of its page of the path."""

    end: int
    marker: bytes


class LocatedGroups(NamedTuple):
    """The pages of groups that the end of a cached path lacks.

    ``digests`` are those of the path, which ends at ``end``. They may be asked outside the owner's
    mutex, by one thread at a time.
    """

    namespace_digest: bytes
    end: int
    pages: list[LackingPage]
    digests: PathHashes

    def page_digests(self) -> list[bytes]:
        """Returns the digests of the pages."""
        return [page_digest(self.digests.through(end), marker) for end, marker in self.pages]


class GroupRead(Hold):
    """A hold on a path, pages of whose groups are to be published in tier 1.

    Their slots, ``targets``, are MOVING. It belongs to no lease.
    """

    __slots__ = ("lacking", "pages", "removals", "targets")

    def __init__(self, at: Position, lacking: list[LackingPage]) -> None:
        namespace = namespace_of(at.node)
        super().__init__(0, namespace, 0.0, nearest(at))
        self.lacking = lacking
        self.targets: Slots = array("Q")
        self.pages: list[ReadPage] = []
        self.removals = namespace.removals
        self.stand_at(at)

    @property
    def namespace_digest(self) -> bytes:
        """The digest of the namespace."""
        return self.namespace.digest

    @property
    def is_stale(self) -> bool:
        """True if its path left the index, or if pages of the namespace were removed since."""
        return self.anchors[0].node.detached or self.removals != self.namespace.removals


class GroupReads:
    """Publishes pages of groups that come from the disk. ``under_way`` are not finished yet."""

    def __init__(self, state: CacheState) -> None:
        self._state = state
        self.under_way: dict[GroupRead, None] = {}

    def locate_groups(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        options: MatchOptions,
        room: int = UNBOUNDED,
    ) -> LocatedGroups:
        """Returns the pages of groups that a match lacks at the end of its cached path.

        Returns none if they take more than ``room`` bytes, or more slots than there are. Has no
        effect at all. Raises the errors of a match. A match that was answered before lacks none.
        """
        lease = self._state.member(caller)
        namespace = self._state.own(lease, namespace_id)
        require_windows(namespace, options.groups)
        lease.require_pins_alive(options)
        length = self._state.length(sequence.tokens, sequence.position)
        most = matchable_pages(length, namespace.layout.page_tokens)
        at = cached_end(lease, namespace, sequence, most)
        at = ancestor(at, min(at.depth, most))
        end, pages = at.depth, list[LackingPage]()
        if options.pin_id not in lease.pins:
            slots = namespace.arena.slot_count
            pages = _lacking(
                namespace, at, options, min(room // namespace.layout.page_bytes, slots)
            )
        first = min((page.end for page in pages), default=end)
        return LocatedGroups(namespace.digest, end, pages, hashes_to(at, since=first))

    def begin_group_read(
        self, caller: Caller, namespace_id: bytes, sequence: Sequence, located: LocatedGroups
    ) -> GroupRead | None:
        """Takes slots for all pages that were located; FREE to MOVING. Evicts as a reservation.

        Returns None if there are too few, if the path is not as it was, or if the disk has not
        heard of a removal. The caller has to finish it. Raises the errors of a match.
        """
        lease = self._state.member(caller)
        namespace = self._state.own(lease, namespace_id)
        at = cached_end(lease, namespace, sequence, located.end)
        if not located.pages or namespace.removing or at.depth != located.end:
            return None
        read = GroupRead(at, located.pages)
        targets = take_targets(self._state, lease, namespace, len(located.pages))
        if len(targets) < len(located.pages):
            namespace.arena.recycle(targets, SlotState.MOVING)
            release(read.anchors)
            return None
        read.targets = targets
        rows = zip(located.pages, located.page_digests(), targets, strict=True)
        read.pages = [ReadPage(page.end + 1, digest, slot) for page, digest, slot in rows]
        self.under_way[read] = None
        return read

    def finish_group_read(
        self, read: GroupRead, good_count: int, checksums: Items[int] = ()
    ) -> int:
        """Publishes the first ``good_count`` pages of a read; returns how many were new.

        MOVING to CACHED, or to FREE. Publishes nothing if the path left the index, or if pages of
        the namespace were removed. ``checksums`` are those of the good pages. Raises nothing.
        """
        namespace, arena = read.namespace, read.namespace.arena
        del self.under_way[read]
        good = 0 if read.is_stale else good_count
        arena.keep_checksums(zip(read.targets[:good], checksums, strict=False))
        published = 0
        for number, (page, slot) in enumerate(zip(read.lacking, read.targets, strict=True)):
            own = array("Q", (slot,))
            if number < good and self._publish(read, page, own):
                published += 1
            else:
                arena.recycle(own, SlotState.MOVING)
        release(read.anchors)
        for counters in (self._state.counters, namespace.counters):
            counters.loaded_page_count += published
        return published

    def _publish(self, read: GroupRead, page: LackingPage, slot: Slots) -> bool:
        """Publishes one page, unless it is cached by now or its extent retires."""
        namespace, arena = read.namespace, read.namespace.arena
        at = read.position_at(page.end)
        there = at.pages == len(at.node.slots) and page.marker in at.node.children
        if there or slot[0] >> INDEX_BITS not in arena.lasting:
            return False
        page_id = write_loaded(read, at, page.marker, slot)
        arena.change(slot, SlotState.MOVING, SlotState.RESERVED)
        end, _, returned = publish(
            namespace, at, page.marker, slot, NO_HINT, cause=Cause.LOADED, page_id=page_id
        )
        for counters in (self._state.counters, namespace.counters, self._state.ended):
            counters.returned_page_count += returned
        self._state.touch(end)
        # Nobody holds it, so no release offers it to the policy.
        namespace.leaf_changed(end.node)
        if self._state.wanted is not None:
            self._state.wanted.inserted(end)
        return True


def _lacking(
    namespace: Namespace, at: Position, options: MatchOptions, most: int
) -> list[LackingPage]:
    """Returns the pages of all windows before ``at`` that are not cached, the deepest first.

    Returns none of them if they are more than ``most``.
    """
    end, node = at.depth, at.node
    firsts = [
        (group_marker(group, namespace.width), max(end - (count or end), options.group_start_page))
        for group, count in options.groups
    ]
    pages: list[LackingPage] = []
    for depth in range(end, min(first for _, first in firsts), -1):
        while node.start >= depth:
            assert node.parent is not None  # the root starts at zero
            node = node.parent
        children = node.children if depth == node.start + len(node.slots) else NO_CHILDREN
        pages += [
            LackingPage(depth, marker)
            for marker, first in firsts
            if first < depth and marker not in children
        ]
        if len(pages) > most:
            return []
    return pages
