"""Slots that an insert takes from another reservation: for its path, and for KV cache groups.

A worker may so reserve slots before it knows the sequences that it will write. Every slot that
an insert names leaves its reservation. A page that was cached already keeps its slot with the
insert's own reservation until that is aborted, so a late copy of the call finds no such slot.
"""

from array import array
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from typing import NamedTuple

from kvstore.core.cache_state import CacheState
from kvstore.core.index.condemned import has_left
from kvstore.core.index.node import Position
from kvstore.core.index.radix import ancestor
from kvstore.core.journal.records import INSERTED, NO_PAGE, PagesRecord, parts_of_pages
from kvstore.core.leases.holds import Hold, Reservation, covered_position
from kvstore.core.leases.journaling import generations_of
from kvstore.core.leases.lease import Lease
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.pages import publish
from kvstore.core.pool.placement import FIRST
from kvstore.core.values.group_pages import group_marker
from kvstore.core.values.requests import GroupInsert, Hint, Sequence, SlotMoves
from kvstore.core.values.slots import INDEX_BITS, NO_CHECKSUM
from kvstore.core.verbs.reclaim import Reclaiming
from kvstore.errors import InvalidField, ParentDetached, ParentNotCovered


class NewGroupPage(NamedTuple):
    """A page of a group to publish: its position on the path, its slot's offset, its checksum."""

    group: int
    position: int
    offset: int
    checksum: int


class PlannedMoves(NamedTuple):
    """The slots that move from ``source``: ``offsets`` for the path, and those of ``pages``.

    Both are empty without a ``source``.
    """

    source: Reservation | None = None
    offsets: Items[int] = ()
    pages: Items[NewGroupPage] = ()


# The plan of an insert that moves no slots.
NO_MOVES = PlannedMoves()


def reservation_for(
    lease: Lease, reservation_id: int, sequence: Sequence, moves: SlotMoves, now: float
) -> Reservation:
    """Returns the reservation of an insert, made if it is new. The lease lacks a new one yet.

    Raises ReservationNotFound, Tombstoned, QuotaExceeded or InvalidField.
    """
    if reservation_id in lease.reservations:
        return lease.reservations[reservation_id]
    lease.reservation_tombstones.require_none(reservation_id, id=reservation_id)
    namespace = lease.reservation(moves.reservation_id).namespace
    lease.require_room(1)
    start_page = namespace.page_position(sequence.position)
    return Reservation(reservation_id, namespace, start_page, now)


def plan_moves(
    lease: Lease, reservation: Reservation, moves: SlotMoves, length: int
) -> PlannedMoves:
    """Returns what is to move for an insert of ``length`` tokens in all; changes nothing.

    Leaves out the pages that an earlier copy of the call inserted. Raises InvalidField,
    ReservationNotFound or Tombstoned.
    """
    end = -(-length // reservation.namespace.layout.page_tokens)
    lacking = max(end - reservation.reserved_end, 0)
    is_new = end > reservation.start_page + reservation.inserted
    # In place of slots that the caller wrote, the insert would publish others.
    offsets = moves.offsets if is_new else ()
    if offsets and len(offsets) != lacking:
        why = f"{lacking} pages have no slot"
        raise InvalidField(field="slot_offsets", value=f"{len(offsets)} slots", why=why)
    if offsets and reservation.moved_count:
        why = "slots of it moved to other reservations"
        raise InvalidField(field="reservation_id", value=reservation.hold_id, why=why)
    every = _group_pages(reservation.namespace, moves.groups)
    pages = [each for each in every if each[:2] not in reservation.group_pages]
    named = [*offsets, *(each.offset for each in pages)]
    if not named:
        return NO_MOVES
    source = lease.reservation(moves.reservation_id)
    if source is reservation or source.namespace is not reservation.namespace:
        why = "of another namespace, or the reservation itself"
        raise InvalidField(field="slots_reservation_id", value=moves.reservation_id, why=why)
    for offset in named:
        if not source.has_at(offset):
            raise InvalidField(field="slot_offsets", value=offset, why="no slot is there")
    if len(set(named)) < len(named):
        raise InvalidField(field="slot_offsets", why="an offset stands there twice")
    return PlannedMoves(source, offsets, pages)


def _group_pages(namespace: Namespace, groups: Items[GroupInsert]) -> list[NewGroupPage]:
    """Returns the pages of all groups; raises InvalidField unless each is named once."""
    pages: list[NewGroupPage] = []
    for group, positions, offsets, checksums in groups:
        group_marker(group, namespace.width)
        if len(offsets) != len(positions):
            value, why = f"{len(offsets)} slots", f"{len(positions)} pages"
            raise InvalidField(field="group_pages.slot_offsets", value=value, why=why)
        if checksums and len(checksums) != len(positions):
            value, why = f"{len(checksums)} checksums", f"{len(positions)} pages"
            raise InvalidField(field="group_pages.page_checksums", value=value, why=why)
        sums = checksums or [NO_CHECKSUM] * len(positions)
        rows = zip(positions, offsets, sums, strict=True)
        pages += [NewGroupPage(group, *row) for row in rows]
    if len({each[:2] for each in pages}) < len(pages):
        raise InvalidField(field="group_pages", why="a page stands there twice")
    return pages


def require_parents(
    namespace: Namespace, base: Hold | None, covered: int | None, pages: Items[NewGroupPage]
) -> None:
    """Raises unless each page belongs to a whole page of the path.

    The path is that of ``base``, or with ``covered`` the first pages, which are about to be
    published. Raises ParentNotCovered or ParentDetached.
    """
    # Where the deepest page can be, so can the others.
    last = max(each.position for each in pages)
    if covered is None:
        if has_left(covered_position(namespace, base, last + 1).node):
            raise ParentDetached(page_position=last)
    elif last >= covered:
        raise ParentNotCovered(page_position=last + 1, covered=covered)


def move_slots(lease: Lease, reservation: Reservation, plan: PlannedMoves) -> None:
    """Moves the slots for the pages of the path. Adds the reservation to the lease if it is new.

    The caller has checked everything.
    """
    if reservation.hold_id not in lease.reservations:
        lease.add_reservation(reservation)
    if plan.source is not None:
        plan.source.drop_prefill()
        reservation.grow(array("Q", [plan.source.move_out(each) for each in plan.offsets]))


class GroupCounts(NamedTuple):
    """The pages of groups that an insert published, found cached, and had evicted lately."""

    inserted: int
    duplicates: int
    returned: int


class GroupPublishing:
    """Publishes pages of groups below the path that a reservation or its base holds."""

    def __init__(self, state: CacheState, reclaiming: Reclaiming) -> None:
        self._state = state
        self._reclaiming = reclaiming

    def publish(
        self, reservation: Reservation, base: Hold | None, plan: PlannedMoves, hint: Hint
    ) -> GroupCounts:
        """Publishes the planned pages; those that are cached already stay.

        ``base`` holds the path. Slots of duplicates become the reservation's.
        """
        source, published, returned = plan.source, 0, 0
        assert source is not None  # the pages are in its slots
        for page, at in _places(reservation.namespace, base, plan.pages):
            slot = source.move_out(page.offset)
            back = self._publish_one(reservation, at, page, slot, hint)
            reservation.group_pages[page[:2]] = back is not None
            if back is None:
                reservation.duplicates.append(slot)
            else:
                published += 1
                returned += back
        return GroupCounts(published, len(plan.pages) - published, returned)

    def _publish_one(
        self,
        reservation: Reservation,
        at: Position,
        page: NewGroupPage,
        slot: int,
        hint: Hint,
    ) -> int | None:
        """Publishes one page at ``at``; returns 1 if it was evicted lately, and 0 otherwise.

        Returns None if it is cached, or if the path left the index with pages that retire.
        """
        namespace = reservation.namespace
        state, marker = self._state, group_marker(page.group, namespace.width)
        there = at.node.children.get(marker) if at.pages == len(at.node.slots) else None
        if there is not None or has_left(at.node):
            if there is not None:
                state.touch(Position(there, 1))
            return None
        slots, page_id = array("Q", (slot,)), 0
        if namespace.journal is not None:
            record = PagesRecord(
                *(INSERTED, FIRST, namespace.number, reservation.lease_number),
                *(namespace.journal.next_id, at.page_id, NO_PAGE, reservation.hold_id),
                *(0, 0, 0, namespace.journal.next_number),
                slots,
                generations_of(reservation, slots),
                array("Q", (page.checksum,)),
                marker,
            )
            page_id = namespace.journal.insert(1, *parts_of_pages(record))
        end, _, returned = publish(namespace, at, marker, slots, hint, page_id=page_id)
        if page.checksum != NO_CHECKSUM:
            namespace.arena.keep_checksums([(slot, page.checksum)])
        state.touch(end)
        # Nobody holds it, so no release offers it to the policy.
        namespace.leaf_changed(end.node)
        if state.wanted is not None:
            state.wanted.inserted(end)
        if state.disk is not None:
            state.disk.touched(end, page.position + 1)
        # Pages of the path that retire left before, so there is no need to look at all of them.
        if slot >> INDEX_BITS in namespace.arena.retiring:
            self._reclaiming.expel(end)
        return returned


def _places(
    namespace: Namespace, base: Hold | None, pages: Iterable[NewGroupPage]
) -> Iterator[tuple[NewGroupPage, Position]]:
    """Yields pages with the ends of the pages that they belong to, the deepest first.

    The caller may publish each before it asks for the next.
    """
    at: Position | None = None
    for each in sorted(pages, key=lambda page: page.position, reverse=True):
        end = each.position + 1
        if at is None or at.node.detached:
            at = covered_position(namespace, base, end)
        else:
            at = ancestor(at, end)
        yield each, at
