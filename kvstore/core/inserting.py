"""Publishing the pages of a reservation: which, under what, and what they supersede."""

from collections.abc import Sequence as Items
from typing import NamedTuple

from kvstore.core.holds import Reservation
from kvstore.core.index.node import Position
from kvstore.core.lease import Lease
from kvstore.core.lookup import base_of, covered_position, page_position, whole_tokens
from kvstore.core.pages import publish
from kvstore.core.tiers import joined, nearest
from kvstore.core.values.requests import NO_HINT, Hint, Sequence
from kvstore.core.values.tokens import TOKEN_BYTES
from kvstore.errors import (
    InsertExceedsReservation,
    InvalidField,
    NamespaceNotFound,
    ParentDetached,
    ParentNotCovered,
)


class Published(NamedTuple):
    """What an insert did, in pages; ``at`` is the end of the last."""

    at: Position
    inserted: int
    duplicates: int
    superseded: int
    returned: int


def insert_range(reservation: Reservation, sequence: Sequence, length: int) -> tuple[int, int]:
    """Return the first page that an insert speaks of and the one after its last.

    ``length`` is that of the whole sequence, in tokens. Raises InvalidField,
    InsertExceedsReservation or ParentNotCovered, or NamespaceNotFound where the
    reservation's was deleted.
    """
    if reservation.namespace.deleted:
        raise NamespaceNotFound(namespace_id=reservation.namespace.namespace_id.hex())
    layout = reservation.namespace.layout
    first = page_position(reservation.namespace, sequence.position)
    if length % layout.page_tokens and not layout.divides_by_token:
        raise InvalidField(field="tokens", value=length, why="not in whole pages")
    end = -(-length // layout.page_tokens)
    reserved_end = reservation.start_page + len(reservation.reserved)
    if first < reservation.start_page or end > reserved_end:
        raise InsertExceedsReservation(
            page_position=first, page_count=end - first, reserved_end=reserved_end
        )
    if first > reservation.whole_end:
        raise ParentNotCovered(page_position=first, covered=reservation.whole_end)
    return first, end


def require_checksums(checksums: Items[int], page_count: int) -> None:
    """Raise InvalidField unless there is a checksum for each page, or none at all."""
    if checksums and len(checksums) != page_count:
        why = f"{page_count} pages are inserted"
        raise InvalidField(field="page_checksums", value=f"{len(checksums)} checksums", why=why)


def publish_next(
    lease: Lease,
    reservation: Reservation,
    sequence: Sequence,
    tokens: bytes,
    checksums: Items[int] = (),
    hint: Hint = NO_HINT,
) -> Published:
    """Insert ``tokens`` at the reservation's inserted end: whole pages, then a partial one.

    A page that is there already stays; so does one that begins with the partial
    one. ``checksums`` are one for each page, or none; ``hint`` is of all. Raises
    ParentNotCovered or ParentDetached, besides what ``base_of`` raises.
    """
    namespace = reservation.namespace
    index = namespace.index
    base = reservation if reservation.inserted else base_of(lease, namespace, sequence)
    parent = covered_position(namespace, base, reservation.whole_end)
    if parent.node.detached:
        raise ParentDetached(page_position=reservation.whole_end)
    pages, rest = divmod(len(tokens), index.width)
    slots = reservation.reserved[reservation.inserted :]
    at = index.descend(parent, tokens, pages)
    duplicates = at.depth - parent.depth
    flags = [False] * duplicates + [True] * (pages - duplicates)
    superseded = returned = 0
    if duplicates < pages:
        whole = tokens[duplicates * index.width : pages * index.width]
        own = slots[duplicates:pages]
        at, superseded, returned = publish(namespace, at, whole, own, hint)
    if rest:
        tail = tokens[pages * index.width :]
        fuller = index.beginning_with(at, tail)
        if fuller is None:
            own = slots[pages : pages + 1]
            at, more, back = publish(namespace, at, tail, own, hint)
            superseded += more
            returned += back
        else:
            at = fuller
        flags.append(fuller is None)
    held = None if base is None else base.tiers
    tiers = joined(held, reservation.whole_end, nearest(at), at.depth)
    marked = zip(slots, flags, checksums, strict=False)
    namespace.arena.keep_checksums((slot, each) for slot, published, each in marked if published)
    anchors = [*reservation.anchors, *(each.other for each in reservation.anchors)]
    left = [anchor.node for anchor in anchors if anchor is not None]
    reservation.record(flags, at, rest // TOKEN_BYTES, tiers)
    for node in left:
        index.compact(node)
    return Published(at, sum(flags), len(flags) - sum(flags), superseded, returned)


def announce(lease: Lease, sequence: Sequence, pin_id: int, reservation: Reservation) -> None:
    """Let matches know what a reservation is to compute of a sequence, from its match on."""
    namespace, pin = reservation.namespace, lease.pins.get(pin_id)
    at = Position(namespace.index.root, 0) if pin is None else pin.position_at(pin.held_end)
    tokens = whole_tokens(at, sequence)
    if tokens is not None:
        start = reservation.start_page
        end = start + len(reservation.reserved)
        reservation.prefill = namespace.prefills.announce(
            tokens, start, end, pin_id, reservation.taken_at
        )


def note_advance(reservation: Reservation, sequence: Sequence, tokens: bytes, now: float) -> None:
    """Note how far a prefill has got, after ``tokens`` of ``sequence`` were inserted anew.

    It ends where all that was announced was inserted, or something else was.
    """
    prefill = reservation.prefill
    if prefill is None:
        return
    end, start = reservation.whole_end, reservation.start_page
    first = 0 < start == prefill.at
    elsewhere = first and sequence.base_pin_id != prefill.pin_id
    as_announced = prefill.tokens.startswith(tokens, prefill.at * reservation.namespace.index.width)
    if elsewhere or not as_announced or end >= prefill.end or reservation.tail_token_count:
        reservation.drop_prefill()
    else:
        reservation.namespace.prefills.advance(prefill, end, now)


def store_next_token(
    lease: Lease, reservation: Reservation, sequence: Sequence, token: int
) -> None:
    """Store what follows ``sequence``, through whose end all is inserted.

    Nothing is stored where a page that it was computed on left the index since:
    that page may have been found bad, and another's in its place says nothing of
    it. Raises ParentNotCovered, besides what ``base_of`` raises; not where a token of
    ``sequence`` was inserted.
    """
    namespace = reservation.namespace
    length = sequence.position * TOKEN_BYTES + len(sequence.tokens)
    depth, rest = divmod(length, namespace.index.width)
    base = reservation if reservation.inserted else base_of(lease, namespace, sequence)
    at = covered_position(namespace, base, depth)
    last = reservation.position_at(depth + 1) if rest else at
    if length and not last.node.detached:
        at.store_next_token(sequence.tokens[len(sequence.tokens) - rest :], token)
