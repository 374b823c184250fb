"""Answers, made from the holds that a call took or found."""

from array import array

from kvstore.core.holds import Pin, Reservation, SourcePin
from kvstore.core.lease import Lease
from kvstore.core.values.requests import Grant, InFlight, Match, Source
from kvstore.core.values.runs import runs_of
from kvstore.errors import Tombstoned

_new_tuple = tuple.__new__


def match_of(lease: Lease, pin: Pin, in_flight: InFlight | None = None) -> Match:
    """Return what a match answers: the pinned path, its source page, and what is in flight.

    Raises Tombstoned where the source page was released, however long ago.
    """
    namespace = pin.namespace
    extents, slots = namespace.extents, pin.slots()
    source = None
    if pin.source_id is not None:
        held = lease.pins.get(pin.source_id)
        if not isinstance(held, SourcePin):
            raise Tombstoned(id=pin.source_id)
        page = runs_of(array("Q", (held.last_slot(),)), extents)[0]
        source = Source(held.hold_id, page, held.valid_token_count)
    runs = runs_of(slots, extents)
    matched = len(slots) * namespace.layout.page_tokens
    return _new_tuple(Match, (matched, runs, source, pin.next_token, 0, in_flight))


def grant_of(reservation: Reservation) -> Grant:
    """Return what a reserve answers: all slots of the reservation."""
    slots = reservation.reserved
    runs = runs_of(slots, reservation.namespace.arena.extents) if slots else ()
    return _new_tuple(Grant, (reservation.hold_id, reservation.start_page, runs))
