"""Holds as the journal has them."""

from array import array
from collections.abc import Sequence

from kvstore.core.index.node import Position
from kvstore.core.journal.journal import Journal
from kvstore.core.journal.records import NO_PAGE, ReserveRecord
from kvstore.core.journal.rows import (
    PIN_SCOPE,
    RESERVATION_SCOPE,
    HoldRow,
    LeaseRow,
    NamedPinRow,
)
from kvstore.core.leases.holds import Hold, Pin, Reservation, SourcePin
from kvstore.core.leases.lease import Lease, LeaseState
from kvstore.core.leases.named_pins import NamedPin
from kvstore.core.values.runs import Run, runs_of
from kvstore.core.values.slots import INDEX_BITS, INDEX_MASK, Slots

# A named tuple's constructor costs a Python frame.
_new_tuple = tuple.__new__


def end_of(hold: Hold) -> int:
    """Returns the id of the deepest page that a hold has on its path, or zero."""
    if not hold.anchors:
        return NO_PAGE
    anchor = hold.anchors[0]
    ids = anchor.node.page_ids
    assert ids is not None  # there is a journal
    return ids.at(anchor.pages - 1)


def pin_row(lease: Lease, pin: Pin) -> HoldRow:
    """Returns the row of a pin."""
    groups: tuple[tuple[int, int, int], ...] = ()
    group_pages: tuple[tuple[int, int], ...] = ()
    if pin.groups:
        groups = tuple((each.group, each.start_page, each.page_count) for each in pin.groups)
        anchors = pin.group_anchors
        group_pages = tuple((Position(each.node, 1).page_id, each.tier) for each in anchors)
    row = (lease.number, PIN_SCOPE, pin.hold_id, pin.namespace.number, end_of(pin), pin.tiers)
    return _new_tuple(HoldRow, (*row, pin.next_token, pin.source_id, 0, groups, group_pages))


def source_row(lease: Lease, pin: SourcePin) -> HoldRow:
    """Returns the row of a source pin."""
    row = (lease.number, PIN_SCOPE, pin.hold_id, pin.namespace.number, end_of(pin), pin.tiers)
    return _new_tuple(HoldRow, (*row, None, None, pin.valid_token_count, (), ()))


def reservation_row(lease: Lease, reservation: Reservation) -> HoldRow:
    """Returns the row that says that a reservation has not ended. Its record has the rest."""
    hold_id, number = reservation.hold_id, reservation.namespace.number
    row = (lease.number, RESERVATION_SCOPE, hold_id, number, NO_PAGE)
    return _new_tuple(HoldRow, (*row, None, None, None, 0, (), ()))


def lease_row(lease: Lease) -> LeaseRow:
    """Returns the row of a lease."""
    return LeaseRow(
        lease.number,
        lease.tenant,
        lease.lease_id,
        lease.secret_digest,
        lease.ttl,
        tuple(sorted(lease.features)),
        lease.display_name,
        tuple(lease.arenas),
        lease.state is LeaseState.EXPIRED,
    )


def named_pin_row(pin: NamedPin) -> NamedPinRow:
    """Returns the row of a named pin."""
    return NamedPinRow(
        *(pin.hold_id, pin.namespace.number, pin.name, end_of(pin)),
        *(pin.tiers, pin.ttl, pin.fingerprint),
    )


def generations_of(hold: Hold, slots: Slots) -> "array[int]":
    """Returns the generations of some slots of a hold's namespace."""
    return generations_in(runs_of(slots, hold.namespace.extents))


def generations_in(runs: Sequence[Run]) -> "array[int]":
    """Returns the generations of all slots of an answer."""
    if len(runs) == 1:
        return runs[0].generations
    generations = array("Q")
    for run in runs:
        generations.extend(run.generations)
    return generations


def _generations_or_zeros(reservation: Reservation) -> "array[int]":
    """Returns the generations of a reservation's slots, zero for those that moved.

    The extents of those that moved may be gone.
    """
    extents, generations = reservation.namespace.extents, array("Q")
    for slot, published in zip(reservation.reserved, reservation.published, strict=True):
        known = None if published else extents[slot >> INDEX_BITS].generations
        generations.append(0 if known is None else known[slot & INDEX_MASK])
    return generations


def write_reservation(
    journal: Journal,
    lease: Lease,
    reservation: Reservation,
    generations: "array[int] | None" = None,
) -> None:
    """Writes all of a reservation. ``generations`` are those of its slots, if they are known."""
    if generations is None:
        generations = _generations_or_zeros(reservation)
    groups: tuple[tuple[int, int, int], ...] = ()
    if reservation.group_pages:
        groups = tuple((*key, int(value)) for key, value in reservation.group_pages.items())
    numbers = (
        *(journal.next_number, reservation.namespace.number, lease.number, reservation.hold_id),
        *(end_of(reservation), reservation.start_page, reservation.inserted),
        reservation.tail_token_count,
    )
    slots = (reservation.reserved, generations, reservation.published, reservation.duplicates)
    record = _new_tuple(ReserveRecord, (*numbers, *slots, groups, reservation.tiers))
    journal.reserve(record)
    reservation.written_count = len(reservation.reserved)
