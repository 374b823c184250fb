"""Holds as the journal has them."""

from array import array
from collections.abc import Sequence

from kvstore.core.index.node import Position
from kvstore.core.journal.journal import Journal
from kvstore.core.journal.records import (
    HAS_TIERS,
    NO_PAGE,
    RESERVE_FORM,
    RESERVED,
    rest_of_reservation,
)
from kvstore.core.journal.rows import (
    PIN_SCOPE,
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
    row = (
        lease.number,
        PIN_SCOPE,
        pin.hold_id,
        pin.namespace.number,
        end_of(pin),
        pin.tiers,
        pin.next_token,
        pin.source_id,
        0,
        groups,
        group_pages,
    )
    return _new_tuple(HoldRow, row)


def source_row(lease: Lease, pin: SourcePin) -> HoldRow:
    """Returns the row of a source pin."""
    row = (lease.number, PIN_SCOPE, pin.hold_id, pin.namespace.number, end_of(pin), pin.tiers)
    return _new_tuple(HoldRow, (*row, None, None, pin.valid_token_count, (), ()))


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
    slots, duplicates = reservation.reserved, reservation.duplicates
    group_pages, tiers = reservation.group_pages, reservation.tiers
    head = RESERVE_FORM.pack(
        RESERVED,
        0 if tiers is None else HAS_TIERS,
        0 if tiers is None else len(tiers),
        len(slots),
        journal.next_number,
        reservation.namespace.number,
        lease.number,
        reservation.hold_id,
        end_of(reservation) if reservation.anchors else NO_PAGE,
        reservation.start_page,
        reservation.inserted,
        reservation.tail_token_count,
        len(duplicates),
        len(group_pages),
    )
    rest = b""
    if group_pages or tiers is not None:
        groups = [(*key, int(published)) for key, published in group_pages.items()]
        rest = rest_of_reservation(groups, tiers or ())
    parts = (head, slots, generations, duplicates, reservation.published, rest)
    reservation.written_at = journal.reserve(*parts)
    reservation.written_count = len(slots)
