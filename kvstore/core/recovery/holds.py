"""The holds of leases and operators, placed on the pages that they held."""

from array import array
from collections.abc import Callable, Container, Iterable

from kvstore.core.index.node import Anchor, Position
from kvstore.core.journal.records import NO_PAGE, PagesRecord, ReserveRecord
from kvstore.core.journal.rows import HoldRow, NamedPinRow
from kvstore.core.leases.holds import HeldGroup, Pin, Reservation, SourcePin
from kvstore.core.leases.lease import Lease
from kvstore.core.leases.named_pins import NamedPin, NamedPinTable
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.placement import nearest
from kvstore.core.pool.tenant import Tenant
from kvstore.core.recovery.tree import TreeRecovery


def restore_pin(
    tree: TreeRecovery, lease: Lease, namespace: Namespace, row: HoldRow, now: float
) -> None:
    """Gives a lease a pin or a source pin, once its pages are in the tree."""
    if row.valid_token_count:

        def place_source(at: Position) -> None:
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
    anchors: dict[int, Anchor] = {}
    for number, (page_id, tier) in enumerate(row.group_pages):
        place = _on_group(pin, anchors, number, tier, len(row.group_pages), lease.owner)
        tree.wait_for(page_id, place)


def _on_group(
    pin: Pin, anchors: dict[int, Anchor], number: int, tier: int, count: int, owner: Tenant
) -> Callable[[Position], None]:
    """Returns what puts one of ``count`` group anchors of a pin on its page."""

    def place(at: Position) -> None:
        pin.hold_pages([(at.node, tier)])
        anchors[number] = pin.group_anchors.pop()
        if len(anchors) == count:
            pin.group_anchors = [anchors[each] for each in range(count)]
            owner.group_page_count += count

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
        if each.inserted > inserted:
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


def without(record: ReserveRecord, gone: Container[int]) -> ReserveRecord:
    """Returns the record of a reservation that lost some slots: to the index, or to another."""
    pairs = zip(record.slots, record.published, strict=True)
    published = bytes(flag or slot in gone for slot, flag in pairs)
    duplicates = array("Q", [each for each in record.duplicates if each not in gone])
    return record._replace(published=published, duplicates=duplicates)


def own_slots(record: ReserveRecord) -> list[int]:
    """Returns the slots that are still a reservation's own."""
    pairs = zip(record.slots, record.published, strict=True)
    return [*(slot for slot, published in pairs if not published), *record.duplicates]


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
        if reservation.tiers is None:
            reservation.tiers = nearest(at)
        reservation.stand_at(at)

    if record.end_id != NO_PAGE:
        tree.wait_for(record.end_id, place)
