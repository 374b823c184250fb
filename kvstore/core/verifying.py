"""Answers that are looked at before they are given: whether their pages are as they were written.

An answer is found and pinned (``match`` or ``acquire`` with ``to_verify``), some of
its pages are named (``inspect``), somebody reads them meanwhile, what is wrong leaves
the index (``remove_corrupt``), and then the answer is given, or asked for again
(``settle``). The pin keeps the pages from being recycled while they are read.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from typing import NamedTuple

from kvstore.core.caller import Caller
from kvstore.core.children import NO_CHILDREN
from kvstore.core.events import Cause
from kvstore.core.holds import Hold, Pin
from kvstore.core.lease import Lease
from kvstore.core.matching import Matching
from kvstore.core.node import Node, Position
from kvstore.core.pages import remove_corrupt
from kvstore.core.path_digests import digest_at
from kvstore.core.requests import MatchWishes
from kvstore.core.slots import INDEX_BITS, INDEX_MASK, NO_CHECKSUM
from kvstore.errors import LeaseNotFound, PageCorrupt

_new_tuple = tuple.__new__
# Which of so many pages are looked at, in rising order.
Pick = Callable[[int], Items[int]]


class PageCheck(NamedTuple):
    """A page to look at: its place, and what its bytes come to if nobody wrote there since.

    ``end`` counts pages from the sequence's beginning through this one; ``node`` was
    its node when the check was made.
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
    """A match that nobody was told of, and the pages of it to look at."""

    lease: Lease
    pin: Pin
    wishes: MatchWishes
    pages: list[PageCheck]

    @property
    def namespace_id(self) -> bytes:
        """The namespace of the pages."""
        return self.pin.namespace.namespace_id


class Verifying(Matching):
    """Keeps an answer back until its pages were looked at."""

    def inspect(self, caller: Caller, wishes: MatchWishes, pick: Pick) -> Inspection | None:
        """Return which pages of a match to look at before it is answered, or None: answer it.

        Called right after the match, which knew the caller. ``pick`` chooses among the
        pages in place and then the source page; those without a checksum are left out. A
        match that was answered before is not looked at again.
        """
        lease = self.table.leases[caller.identity.tenant, caller.lease_id]
        pin = lease.pins.get(wishes.pin_id)
        if not isinstance(pin, Pin) or pin.unanswered is None:
            return None
        pages = _checks(lease, pin, pick)
        if pages:
            return Inspection(lease, pin, wishes, pages)
        self._tell(lease, wishes.pin_id)
        return None

    def remove_corrupt(
        self, inspection: Inspection, corrupt: Items[PageCheck], read_count: int
    ) -> list[PageCheck]:
        """Take pages that are not what was written out of the index, and all below them.

        Returns those of ``corrupt`` that were still there: what left the index
        meanwhile, or has its slot no more, is nobody's any more; of what left, the
        next tokens within it go now. ``read_count`` pages were looked at. Raises
        nothing: the lease may be gone by now.
        """
        lease, namespace = inspection.lease, inspection.pin.namespace
        counted = lease.counters if self.table.has(lease) else self.ended
        every = self.counters, namespace.counters, counted
        for counters in every:
            counters.verified_page_count += read_count
        if not corrupt:
            return []
        found = [page for page in corrupt if _place_of(page) is not None]
        for page in corrupt:
            if page not in found:
                _forget_ends(lease, inspection.pin, page)
                self._forbid(lease, inspection.pin, page)
        # From the top: what is below goes with it.
        for page in sorted(found, key=lambda each: each.end):
            at = _place_of(page)
            if at is not None:
                if self.third is not None:
                    self.third.remove(namespace, digest_at(at))
                self.count_removed(namespace, remove_corrupt(at), Cause.CORRUPT)
        for counters in every:
            counters.corrupt_page_count += len(found)
        return found

    def settle(self, inspection: Inspection, corrupt: Items[PageCheck]) -> bool:
        """Return whether the match may be answered; else it has to be asked for again.

        That is so where a page of its path left the index, or another call under the
        same ids asked again. Its holds are then dropped, without a tombstone. Raises
        what a match raises where the lease cannot take part any more, Tombstoned
        where a pin was released meanwhile, and PageCorrupt where a repeated call
        answered, meanwhile, what is found corrupt now.
        """
        lease = inspection.lease
        if not self.table.has(lease):
            raise LeaseNotFound(lease_id=lease.lease_id.hex())
        lease.require_active()
        lease.require_attached()
        self._require_alive(lease, inspection.wishes)
        pin = inspection.pin
        if lease.pins.get(pin.hold_id) is not pin:
            return False
        if pin.unanswered is None:
            if corrupt:
                raise PageCorrupt(page_position=corrupt[0].page_position)
            return True
        source = lease.pins.get(pin.source_id or 0)
        anchors = pin.anchors if source is None else [*pin.anchors, *source.anchors]
        if True not in [anchor.node.detached for anchor in anchors]:
            self._tell(lease, pin.hold_id)
            return True
        self.withdraw(inspection)
        return False

    def withdraw(self, inspection: Inspection) -> None:
        """Drop the holds of a match that is not answered, without a tombstone.

        Does nothing if the lease or the pin is already removed, or if a repeated call was answered.
        Raises nothing.
        """
        lease, pin = inspection.lease, inspection.pin
        if not self.table.has(lease) or lease.pins.get(pin.hold_id) is not pin:
            return
        if pin.unanswered is None:
            return
        source = lease.pins.get(pin.source_id or 0)
        holds = [pin] if source is None else [pin, source]
        for hold in holds:
            self.drop_pin(lease, hold)
        reservation = lease.reservations.get(pin.unanswered.reservation_id or 0)
        if reservation is not None:
            self.drop_reservation(lease, reservation)

    def _forbid(self, lease: Lease, pin: Pin, page: PageCheck) -> None:
        """Note that what was computed on a page that left the index may not return either."""
        hold = _hold_of(lease, pin, page)
        if self.third is not None and hold is not None:
            width = pin.namespace.index.width
            self.third.remove_prefix(pin.namespace, hold.tokens()[: page.end * width])

    def _made_with(self, lease: Lease, pin_id: int, reservation_id: int) -> None:
        """Note that a reservation goes with a pin that is unanswered, if there is one."""
        pin = lease.pins.get(pin_id)
        if isinstance(pin, Pin) and pin.unanswered is not None:
            pin.unanswered.reservation_id = reservation_id


def _checks(lease: Lease, pin: Pin, pick: Pick) -> list[PageCheck]:
    """Return the checks of a match's pages that ``pick`` chooses and that have a checksum."""
    source = None if pin.source_id is None else lease.pins.get(pin.source_id)
    count = pin.held_end
    chosen = pick(count + (source is not None))
    if not chosen:
        return []
    picked = [each + 1 for each in chosen]
    checks: list[PageCheck] = []
    if source is not None and picked[-1] > count:
        picked.pop()
        checks += _checks_of(source, [source.held_end])
    return checks + _checks_of(pin, picked)


def _checks_of(hold: Hold, ends: list[int]) -> list[PageCheck]:
    """Return the checks of the pages of a held path that end at ``ends``, deepest first.

    Empties ``ends``, which rise. Cost: a step for each of them and for each node.
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


def _checks_in(hold: Hold, node: Node, ends: list[int]) -> Iterator[PageCheck]:
    """Yield the checks of pages of one node, which has them all."""
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
            # What PageCheck(...) does, without a frame of Python's for each page.
            fields = slot, generations[index], checksums[index], end, node
            yield _new_tuple(PageCheck, fields)


def _forget_ends(lease: Lease, pin: Pin, page: PageCheck) -> None:
    """Forget the next tokens within a page that is held and that the index has no more.

    It was superseded, or removed, and another page may begin with the same tokens.
    """
    hold = _hold_of(lease, pin, page)
    if hold is None:
        return
    index, tokens = pin.namespace.index, hold.tokens()
    at = index.descend(Position(index.root, 0), tokens, page.page_position)
    if at.depth == page.page_position and at.node.ends is not None:
        content = tokens[at.depth * index.width : page.end * index.width]
        at.node.ends.forget(at.depth, content, NO_CHILDREN)


def _hold_of(lease: Lease, pin: Pin, page: PageCheck) -> Hold | None:
    """Return what holds the path of a check still: the pin or its source pin, or None."""
    hold = pin if page.end <= pin.held_end else lease.pins.get(pin.source_id or 0)
    return None if hold is None or hold.held_end < page.end else hold


def _place_of(page: PageCheck) -> Position | None:
    """Return where the page of a check stands in the index now, or None where it does not.

    A node's pages only ever move to nodes that a split puts above it, or to the one
    that it was merged with, which it is below since.
    """
    node: Node | None = page.node
    extent = page.node.namespace.extents.get(page.slot >> INDEX_BITS)
    if extent is None or extent.generations[page.slot & INDEX_MASK] != page.generation:
        return None
    while node is not None and node.start >= page.end:
        node = node.parent
    if node is None or node.detached:
        return None
    return Position(node, page.end - node.start)
