"""Verify answers: some pages are read before an answer is given, to see if they are intact.

``match_with_checks`` and ``acquire_with_checks`` return an inspection beside their answer if
pages of it are to be read first. The caller reads them. ``remove_corrupt`` removes damaged ones
from the index. ``settle`` then says if the answer may be given or has to be asked for again.
The pin keeps the pages from being recycled while they are read.
If much follows a damaged page, ``remove_condemned`` removes it in parts, and nobody finds it
meanwhile.
"""

from bisect import bisect_right
from collections.abc import Iterator
from collections.abc import Sequence as Items
from typing import NamedTuple

from kvstore.core.cache_state import CacheState
from kvstore.core.index.children import NO_CHILDREN
from kvstore.core.index.condemned import has_left
from kvstore.core.index.node import Anchor, Node, Position
from kvstore.core.index.path_hashes import hash_at
from kvstore.core.index.radix import end_of_path
from kvstore.core.index.removal import part_of
from kvstore.core.leases.holds import Hold, Pin
from kvstore.core.leases.lease import Lease
from kvstore.core.pool.namespace import Namespace, namespace_of
from kvstore.core.pool.pages import forget_ends, remove_below, remove_corrupt
from kvstore.core.values.event_log import Cause
from kvstore.core.values.group_pages import is_group_page
from kvstore.core.values.requests import MatchOptions, Removed
from kvstore.core.values.slots import INDEX_BITS, INDEX_MASK, NO_CHECKSUM
from kvstore.errors import LeaseNotFound, PageCorrupt


class PageCheck(NamedTuple):
    """A page to read: its slot, and the checksum of its bytes if nobody wrote there since.

    ``end`` counts pages from the sequence's beginning through this one. ``node`` was its node
    when the check was made.
    """

    slot: int
    generation: int
    checksum: int
    end: int
    node: Node

    @property
    def page_position(self) -> int:
        """Pages from the sequence's beginning up to this one."""
        return self.end - 1


class Inspection(NamedTuple):
    """A match that was not answered yet, and the pages of it to read."""

    lease: Lease
    pin: Pin
    options: MatchOptions
    pages: list[PageCheck]

    @property
    def namespace_id(self) -> bytes:
        """The namespace of the pages."""
        return self.pin.namespace.namespace_id


class Verifying:
    """Concludes inspections: removes damaged pages, and says if the answer may be given.

    A step removes about ``work_at_once`` of the state at most, as ``removal_work`` counts it.
    """

    def __init__(self, state: CacheState) -> None:
        self._state = state

    def remove_corrupt(
        self, inspection: Inspection, corrupt: Items[PageCheck], read_count: int
    ) -> list[PageCheck]:
        """Removes pages whose bytes have changed from the index, and everything below them.

        Returns those of ``corrupt`` that were still there. Others left the index meanwhile, or lost
        their slot; of those that left, drops the next tokens within them. ``read_count`` pages were
        read. If much is below them, ``remove_condemned`` has still to remove it. Raises nothing,
        since the lease may be gone by now.
        """
        lease, namespace = inspection.lease, inspection.pin.namespace
        counted = lease.counters if self._state.table.has(lease) else self._state.ended
        every = self._state.counters, namespace.counters, counted
        for counters in every:
            counters.verified_page_count += read_count
        if not corrupt:
            return []
        found = [page for page in corrupt if _place_of(page) is not None]
        for page in corrupt:
            if page not in found:
                self._forget(lease, inspection.pin, page)
        # From the top, since a page leaves with everything below it.
        for page in sorted(found, key=lambda each: each.end):
            at = _place_of(page)
            if at is not None:
                self._remove_from_disk(namespace, at)
                self._count(namespace, remove_corrupt(at, self._state.work_at_once))
        for counters in every:
            counters.corrupt_page_count += len(found)
        return found

    def remove_condemned(self) -> bool:
        """Removes a part of the condemned pages. Returns True if any may be left.

        MUST be called again until then. A part is about ``work_at_once``.
        """
        condemned = self._state.condemned
        while condemned:
            namespace = next(iter(condemned))
            # Some may have left with what is above them.
            tops = [each for each in namespace.condemned if not each.detached]
            if tops:
                part = part_of(namespace.index, tops[:1], self._state.work_at_once)
                self._state.remove_pages(namespace, part or tops[:1], Cause.CORRUPT)
                return True
            del condemned[namespace]
        return False

    def settle(self, inspection: Inspection, corrupt: Items[PageCheck]) -> bool:
        """Returns True if the match may be answered, and False if it has to be asked for again.

        It is False if a page of its path left the index, or if another call under the same ids
        asked again. Then its holds are dropped, without a tombstone. Raises the errors of a match
        if the lease may not take part any more, and Tombstoned if a pin was released meanwhile.
        Raises PageCorrupt if a repeated call meanwhile answered pages that are corrupt.
        """
        lease = inspection.lease
        if not self._state.table.has(lease):
            raise LeaseNotFound(lease_id=lease.lease_id.hex())
        lease.require_active()
        lease.require_attached()
        lease.require_pins_alive(inspection.options)
        pin = inspection.pin
        if lease.pins.get(pin.hold_id) is not pin:
            return False
        if pin.unanswered is None:
            if corrupt:
                raise PageCorrupt(page_position=corrupt[0].page_position)
            return True
        source = lease.pins.get(pin.source_id or 0)
        anchors = [*pin.anchors, *pin.group_anchors]
        if source is not None:
            anchors += source.anchors
        if not any(has_left(anchor.node) for anchor in anchors):
            self._state.count_answer(lease, pin)
            return True
        self.withdraw(inspection)
        return False

    def withdraw(self, inspection: Inspection) -> None:
        """Drops the holds of a match that is not answered, without a tombstone.

        Does nothing if the lease or the pin is already removed, or if a repeated call was answered.
        Raises nothing.
        """
        lease, pin = inspection.lease, inspection.pin
        if not self._state.table.has(lease) or lease.pins.get(pin.hold_id) is not pin:
            return
        if pin.unanswered is None:
            return
        source = lease.pins.get(pin.source_id or 0)
        holds = [pin] if source is None else [pin, source]
        journal = self._state.journal
        for hold in holds:
            if journal is not None:
                journal.drop(lease.number, hold.hold_id)
            lease.drop_pin(hold)
        reservation = lease.reservations.get(pin.unanswered.reservation_id or 0)
        if reservation is not None:
            if journal is not None:
                journal.withdraw(lease.number, reservation.hold_id)
            lease.drop_reservation(reservation)

    def _remove_from_disk(self, namespace: Namespace, at: Position) -> None:
        """Records that a corrupt page may not return from the disk, nor anything after it.

        With a page of a KV cache group goes the page of the path that it belongs to.
        """
        if self._state.disk is None:
            return
        if is_group_page(at.node.edge):
            at = end_of_path(at.node)
            namespace.lose()
        self._state.disk.remove(namespace, hash_at(at), is_corrupt=True)

    def _forget(self, lease: Lease, pin: Pin, page: PageCheck) -> None:
        """Drops what was computed on a corrupt page that left the index, as far as it is known.

        Pages of the same tokens that were inserted and kept since then leave the disk with it.
        """
        namespace, width = pin.namespace, pin.namespace.index.width
        if is_group_page(page.node.edge):
            hold: Hold | None = pin
            end = page.end - 1
            self._remove_path_after(pin, end)
        else:
            hold, end = _hold_of(lease, pin, page), page.end
            _forget_next_tokens(lease, pin, page)
        if self._state.disk is not None and hold is not None and hold.held_end >= end:
            namespace.lose()
            tokens = hold.tokens()[: end * width]
            self._state.disk.remove_prefix(namespace, tokens, is_corrupt=True)

    def _remove_path_after(self, pin: Pin, end: int) -> None:
        """Removes the pages that continue the first ``end`` pages of a pinned path."""
        namespace = pin.namespace
        at = Position(namespace.index.root, 0)
        if not namespace.deleted and pin.held_end >= end:
            at = namespace.index.descend(at, pin.tokens(), end)
        if end and at.depth == end:
            self._count(namespace, remove_below(at, self._state.work_at_once))

    def _count(self, namespace: Namespace, removed: Removed) -> None:
        """Counts corrupt pages that left. Remembers the namespace if others are condemned."""
        self._state.count_removed(namespace, removed, Cause.CORRUPT)
        if namespace.condemned:
            self._state.condemned[namespace] = None


def inspection_of(
    lease: Lease, pin: Pin, options: MatchOptions, chosen: Items[int]
) -> Inspection | None:
    """Returns the inspection of the chosen pages of a match, or None if none has a checksum.

    ``chosen`` are numbers, in rising order, of the pages in place, followed by the source page
    or by the pages of groups.
    """
    source = None if pin.source_id is None else lease.pins.get(pin.source_id)
    ends = [each + 1 for each in chosen]
    beyond = bisect_right(ends, pin.held_end)
    others = ends[beyond:]
    del ends[beyond:]
    pages: list[PageCheck] = []
    if source is not None and others:
        pages += _checks_of(source, [source.held_end])
    elif others:
        anchors = [pin.group_anchors[end - pin.held_end - 1] for end in others]
        pages += _checks_at(pin, anchors)
    pages += _checks_of(pin, ends)
    return Inspection(lease, pin, options, pages) if pages else None


def _checks_of(hold: Hold, ends: list[int]) -> list[PageCheck]:
    """Returns the checks of the pages of a held path that end at ``ends``, the deepest first.

    Empties ``ends``, which rise. Costs a step for each of them and for each node.
    """
    checks: list[PageCheck] = []
    for anchor in hold.anchors:
        node: Node | None = anchor.node
        while ends and node is not None:
            first = bisect_right(ends, node.start)
            chosen = ends[first:]
            if chosen:
                del ends[first:]
                chosen.reverse()
                checks += _checks_in(hold, node, chosen)
            node = node.parent
    return checks


def _checks_at(hold: Hold, anchors: Items[Anchor]) -> Iterator[PageCheck]:
    """Yields the checks of pages of groups, each held by an anchor."""
    for anchor in anchors:
        slot, node = anchor.copies.slots[0], anchor.node
        extent = hold.namespace.extents[slot >> INDEX_BITS]
        index = slot & INDEX_MASK
        checksum = extent.checksums[index]
        if checksum != NO_CHECKSUM:
            yield PageCheck(slot, extent.generations[index], checksum, node.start + 1, node)


def _checks_in(hold: Hold, node: Node, ends: list[int]) -> Iterator[PageCheck]:
    """Yields the checks of pages of one node, which has them all."""
    extents = hold.namespace.extents
    owner, before, own = -1, node.start + 1, node.slots
    for end in ends:
        if hold.tiers is None:
            slot = own[end - before]
        else:
            slot = hold.slot_at(Position(node, end - node.start))
        if slot >> INDEX_BITS != owner:
            owner = slot >> INDEX_BITS
            extent = extents[owner]
            generations, checksums = extent.generations, extent.checksums
        index = slot & INDEX_MASK
        if checksums[index] != NO_CHECKSUM:
            yield PageCheck(slot, generations[index], checksums[index], end, node)


def _forget_next_tokens(lease: Lease, pin: Pin, page: PageCheck) -> None:
    """Drops the next tokens within a held page that is not in the index any more.

    The page was superseded or removed, and another page may begin with the same tokens.
    """
    hold = _hold_of(lease, pin, page)
    if hold is None:
        return
    index, tokens = pin.namespace.index, hold.tokens()
    at = index.descend(Position(index.root, 0), tokens, page.page_position)
    if at.depth == page.page_position and at.node.next_tokens is not None:
        content = tokens[at.depth * index.width : page.end * index.width]
        at.node.next_tokens.forget(at.depth, content, NO_CHILDREN.has_begun_by)
        forget_ends(pin.namespace, at, content)


def _hold_of(lease: Lease, pin: Pin, page: PageCheck) -> Hold | None:
    """Returns the hold that still has the path of a check: the pin, its source pin, or None."""
    hold = pin if page.end <= pin.held_end else lease.pins.get(pin.source_id or 0)
    return None if hold is None or hold.held_end < page.end else hold


def _place_of(page: PageCheck) -> Position | None:
    """Returns the place of a check's page in the index now, or None if it left.

    A node's pages move only to nodes that a split puts above it, or to the node that it was
    merged with, which it is below since then.
    """
    node: Node | None = page.node
    extent = namespace_of(page.node).extents.get(page.slot >> INDEX_BITS)
    if extent is None or extent.generations[page.slot & INDEX_MASK] != page.generation:
        return None
    while node is not None and node.start >= page.end:
        node = node.parent
    if node is None or has_left(node):
        return None
    return Position(node, page.end - node.start)
