"""The holds of leases and operators, placed on the pages that they held."""

from array import array
from bisect import bisect
from collections.abc import Container, Iterable

from kvstore.core.index.node import Position
from kvstore.core.journal.records import NO_PAGE, PagesRecord, ReserveRecord
from kvstore.core.journal.rows import HoldRow, NamedPinRow
from kvstore.core.leases.holds import HeldGroup, Pin, Reservation, SourcePin
from kvstore.core.leases.lease import Lease
from kvstore.core.leases.named_pins import NamedPin, NamedPinTable
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.placement import joined, nearest
from kvstore.core.recovery.tree import Placing, TreeRecovery
from kvstore.core.values.slots import Slots


def restore_pin(
    tree: TreeRecovery, lease: Lease, namespace: Namespace, row: HoldRow, now: float
) -> None:
    """Gives a lease a pin or a source pin, once its pages are in the tree."""
    if row.valid_token_count:

        def place_source(at: Position) -> None:
            known = lease.pins.get(row.hold_id)
            if known is not None:
                known.stand_at(at)
                return
            valid = row.valid_token_count
            lease.add_pin(SourcePin(row.hold_id, namespace, at, valid, now, row.tiers))

        tree.wait_for(row.page_id, place_source)
        return
    # No fingerprint: it is another one in each process.
    pin = Pin(row.hold_id, namespace, Position(namespace.index.root, 0), None, now, row.tiers)
    pin.next_token, pin.source_id = row.next_token, row.source_id
    pin.groups = tuple(HeldGroup(*each) for each in row.groups)
    lease.add_pin(pin)
    if row.page_id != NO_PAGE:
        tree.wait_for(row.page_id, pin.stand_at)
    placed: list[int] = []
    for number, (page_id, tier) in enumerate(row.group_pages):
        tree.wait_for(page_id, _on_group(pin, placed, number, tier))


def _on_group(pin: Pin, placed: list[int], number: int, tier: int) -> Placing:
    """Returns what puts the group anchor of a ``number`` on its page, in the pin's order.

    ``placed`` are the numbers of the anchors that the pin has by then, in rising order.
    """

    def place(at: Position) -> None:
        pin.hold_pages([(at.node, tier)])
        where = bisect(placed, number)
        placed.insert(where, number)
        pin.group_anchors.insert(where, pin.group_anchors.pop())
        pin.namespace.arena.owner.group_page_count += 1

    return place


def restore_named_pin(
    tree: TreeRecovery, table: NamedPinTable, namespace: Namespace, row: NamedPinRow, now: float
) -> None:
    """Makes a named pin, whose time to live begins anew, once its pages are in the tree."""

    def place(at: Position) -> None:
        table.last_number = row.number - 1
        pin = NamedPin(table, namespace, at, row.name, row.fingerprint, now, row.tiers)
        table.add(pin)
        pin.live(now, row.ttl)

    tree.wait_for(row.page_id, place)


def caught_up(record: ReserveRecord, inserts: Iterable[PagesRecord]) -> ReserveRecord:
    """Returns the record of a reservation as its last insert left it."""
    published, inserted = bytearray(record.published), record.inserted
    tail_token_count, end_id = record.tail_token_count, record.end_id
    for each in sorted(inserts, key=lambda insert: insert.inserted):
        if each.inserted > inserted and _is_of(each, record):
            count, inserted = len(each.slots), each.inserted
            published[each.offset : inserted] = bytes(each.duplicate_count) + b"\1" * count
            tail_token_count = each.tail_token_count
            end_id = each.base_id + count - 1 if count else each.parent_id
    return record._replace(
        published=bytes(published),
        inserted=inserted,
        tail_token_count=tail_token_count,
        end_id=end_id,
    )


def _is_of(insert: PagesRecord, record: ReserveRecord) -> bool:
    """Returns True unless an insert is of an earlier reservation of the same id."""
    if not insert.slots:
        return True
    place = insert.inserted - len(insert.slots)
    written = record.slots[place : place + 1], record.generations[place : place + 1]
    return written == (insert.slots[:1], insert.generations[:1])


def without(record: ReserveRecord, gone: Container[int]) -> ReserveRecord:
    """Returns the record of a reservation that lost some slots: to the index, or to another."""
    pairs = zip(record.slots, record.published, strict=True)
    published = bytes(flag or slot in gone for slot, flag in pairs)
    duplicates = array("Q", [each for each in record.duplicates if each not in gone])
    return record._replace(published=published, duplicates=duplicates)


def own_slots(record: ReserveRecord) -> Slots:
    """Returns the slots that are still a reservation's own."""
    pairs = zip(record.slots, record.published, strict=True)
    return array("Q", [slot for slot, published in pairs if not published]) + record.duplicates


def restore_reservation(
    tree: TreeRecovery, lease: Lease, namespace: Namespace, record: ReserveRecord, now: float
) -> None:
    """Gives a lease a reservation, which holds its path once that is in the tree."""
    reservation = Reservation(record.reservation_id, namespace, record.start_page, now)
    reservation.reserved, reservation.published = record.slots, bytearray(record.published)
    reservation.duplicates = record.duplicates
    reservation.group_pages = {
        (group, position): bool(published) for group, position, published in record.group_pages
    }
    reservation.inserted, reservation.tiers = record.inserted, record.tiers
    reservation.tail_token_count = record.tail_token_count
    partial = int(record.tail_token_count > 0)
    reservation.whole_end = record.start_page + record.inserted - partial
    # An insert may come again under any base that has the same tokens.
    reservation.base = (None, record.reservation_id) if record.inserted else None
    reservation.written_count = len(record.slots)
    lease.add_reservation(reservation)
    lease.owner.group_page_count += len(reservation.group_pages)

    def place(at: Position) -> None:
        if namespace.lower_arena is not None:
            # The pages of an insert that was cut off have no tiers in the reservation's record.
            known = reservation.tiers[-1][0] if reservation.tiers else 0
            reservation.tiers = joined(reservation.tiers, known, nearest(at), at.depth)
        reservation.stand_at(at)

    if record.end_id != NO_PAGE:
        tree.wait_for(record.end_id, place)
