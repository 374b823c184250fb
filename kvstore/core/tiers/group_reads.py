"""Reads of KV cache groups' pages: from the disk to tier 1, for the windows of a match.

The pages that a match lacks at the end of its cached path are read all together, or none. The core
decides under its owner's mutex; others read outside it, and finish under it.
"""

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as Items
from types import MappingProxyType
from typing import NamedTuple

from kvstore.core.cache_state import CacheState
from kvstore.core.index.children import NO_CHILDREN
from kvstore.core.index.condemned import has_left
from kvstore.core.index.node import Node, Position
from kvstore.core.index.path_hashes import PageName, PathHashes, hashes_to
from kvstore.core.index.radix import ancestor
from kvstore.core.leases.holds import Hold
from kvstore.core.pool.namespace import Namespace, namespace_of
from kvstore.core.pool.pages import publish, release, release_groups
from kvstore.core.pool.placement import FIRST, LOWER, nearest
from kvstore.core.tiers.disk_reads import ReadPage, write_loaded
from kvstore.core.tiers.disk_writes import UNBOUNDED
from kvstore.core.tiers.read_slots import EvictionBound, take_targets
from kvstore.core.values.event_log import Cause
from kvstore.core.values.group_pages import group_marker
from kvstore.core.values.page_hash import page_digest
from kvstore.core.values.requests import NO_HINT, Caller, MatchOptions, Sequence
from kvstore.core.values.slots import INDEX_BITS, Slots, SlotState
from kvstore.core.verbs.group_windows import fit, require_windows, tier_for
from kvstore.core.verbs.lookup import cached_end, matchable_pages

EVERY_PAGE_ON_THE_FIRST: Mapping[bytes, int] = MappingProxyType({})


class LackingPage(NamedTuple):
    """A group's page that is not cached. ``end`` is that of its page of the path."""

    end: int
    marker: bytes


class LocatedGroups(NamedTuple):
    """The pages of groups that the end of a cached path lacks.

    ``firsts`` are the first page of each window, by the marker of its group. ``match_end`` is
    where a match ends without the pages, and ``end`` where it ends with them, in pages. ``digests``
    are those of the path. They may be asked outside the owner's mutex, by one thread at a time.
    """

    namespace_digest: bytes
    match_end: int
    end: int
    firsts: Mapping[bytes, int]
    pages: list[LackingPage]
    digests: PathHashes

    def page_digests(self) -> list[bytes]:
        """Returns the digests of the pages."""
        return [page_digest(self.digests.through(end), marker) for end, marker in self.pages]

    def page_names(self) -> list[PageName]:
        """Returns the names of the pages. Each is in the segment of its page of the path."""
        segments = (self.digests.name(end).segment for end, _ in self.pages)
        return list(map(PageName, self.page_digests(), segments))


class GroupRead(Hold):
    """A hold on a path, pages of whose groups are to be published in tier 1.

    It holds the cached pages of the windows too, without which the others are of no use. The
    slots, ``targets``, are MOVING; with ``is_bounded`` they were taken under a bound. It belongs
    to no lease.
    """

    __slots__ = ("is_bounded", "lacking", "pages", "removals", "targets")

    def __init__(self, at: Position, lacking: list[LackingPage]) -> None:
        namespace = namespace_of(at.node)
        super().__init__(0, namespace, 0.0, nearest(at))
        self.lacking = lacking
        self.targets: Slots = array("Q")
        self.is_bounded = False
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
        return has_left(self.anchors[0].node) or self.removals != self.namespace.removals

    def release(self) -> None:
        """Releases all that it holds."""
        release_groups(self.group_anchors)
        release(self.anchors)


class GroupReads:
    """Publishes pages of groups that come from the disk. ``under_way`` are not finished yet."""

    def __init__(self, state: CacheState) -> None:
        self._state = state
        self.under_way: dict[GroupRead, None] = {}
        self._by_digest: dict[Namespace, dict[bytes, GroupRead]] = {}

    def reads_in(self, namespace: Namespace) -> Mapping[bytes, GroupRead]:
        """Returns the reads under way in a namespace, by the digests of their pages."""
        return self._by_digest.get(namespace, {})

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
        firsts = {
            group_marker(group, namespace.width): max(
                end - (count or end), options.group_start_page
            )
            for group, count in options.groups
        }
        if options.pin_id not in lease.pins:
            room = min(room // namespace.layout.page_bytes, namespace.arena.slot_count)
            _, pages = _windows_at(at, firsts, room)
        match_end = end
        if pages:
            every = options.groups, options.group_start_page
            match_end = fit(namespace, at, *every, tier_for(None, namespace))[0].depth
        first = min((page.end for page in pages), default=end)
        digests = hashes_to(at, since=first)
        return LocatedGroups(namespace.digest, match_end, end, firsts, pages, digests)

    def begin_group_read(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        located: LocatedGroups,
        numbers: Mapping[bytes, int] = EVERY_PAGE_ON_THE_FIRST,
        bound: EvictionBound | None = None,
    ) -> GroupRead | None:
        """Takes slots for the pages that still lack of those located; FREE to MOVING.

        ``numbers`` are the page stores of the pages by their digests, the first one by default.
        Evicts as a reservation would, or less with a ``bound``. If a read under way brings one of
        the pages, returns that read: once it is finished, the pages are to be located again.
        Returns None if nothing lacks, if there are too few slots, if the path is not as it was, if
        more pages lack, or if a page store of them has not heard of a removal. The first caller of
        a read has to finish it. Raises the errors of a match.
        """
        lease = self._state.member(caller)
        namespace = self._state.own(lease, namespace_id)
        at = cached_end(lease, namespace, sequence, located.end)
        if at.depth != located.end:
            return None
        names = dict(zip(located.pages, located.page_names(), strict=True))
        cached, pages = _windows_at(at, located.firsts, len(names))
        if not pages or not names.keys() >= set(pages):
            return None
        reads_in = self.reads_in(namespace)
        wanted = [names[page].digest for page in pages]
        if any(namespace.removing[numbers.get(digest, 0)] for digest in wanted):
            return None
        under_way = [reads_in[digest] for digest in wanted if digest in reads_in]
        if under_way:
            return under_way[0]
        read = GroupRead(at, pages)
        read.hold_pages(cached)
        read.is_bounded = bound is not None
        targets = read.targets = take_targets(self._state, lease, namespace, len(pages), bound)
        if len(targets) < len(pages):
            namespace.arena.recycle(targets, SlotState.MOVING)
            self._drop(read)
            return None
        for page, slot in zip(pages, targets, strict=True):
            digest, segment = names[page]
            number = numbers.get(digest, 0)
            read.pages.append(ReadPage(page.end + 1, digest, slot, segment, number))
        begun = {page.digest: read for page in read.pages}
        self._by_digest.setdefault(namespace, {}).update(begun)
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
        reads_in = self._by_digest[namespace]
        for each in read.pages:
            del reads_in[each.digest]
        if not reads_in:
            del self._by_digest[namespace]
        good = 0 if read.is_stale else good_count
        arena.keep_checksums(zip(read.targets[:good], checksums, strict=False))
        published = 0
        for number, (page, slot) in enumerate(zip(read.lacking, read.targets, strict=True)):
            own = array("Q", (slot,))
            if number < good and self._publish(read, page, own):
                published += 1
            else:
                arena.recycle(own, SlotState.MOVING)
        self._drop(read)
        for counters in (self._state.counters, namespace.counters):
            counters.loaded_page_count += published
        return published

    def _drop(self, read: GroupRead) -> None:
        """Releases all that a read holds, except for its slots, which are no longer its own."""
        if read.is_bounded:
            read.namespace.arena.bounded_count -= len(read.targets)
        read.release()

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


def _windows_at(
    at: Position, firsts: Mapping[bytes, int], most: int
) -> tuple[list[tuple[Node, int]], list[LackingPage]]:
    """Returns the cached pages of all windows before ``at``, each in a tier, and the others.

    ``firsts`` are the first page of each window, by the marker of its group. Both lists begin
    with the deepest page. Both are empty if more than ``most`` pages are not cached.
    """
    node = at.node
    cached: list[tuple[Node, int]] = []
    lacking: list[LackingPage] = []
    for depth in range(at.depth, min(firsts.values()), -1):
        while node.start >= depth:
            assert node.parent is not None  # the root starts at zero
            node = node.parent
        children = node.children if depth == node.start + len(node.slots) else NO_CHILDREN
        for marker, first in firsts.items():
            if first >= depth:
                continue
            page = children.get(marker)
            if page is None:
                lacking.append(LackingPage(depth, marker))
            else:
                cached.append((page, FIRST if page.copy_count else LOWER))
        if len(lacking) > most:
            return [], []
    return cached, lacking
