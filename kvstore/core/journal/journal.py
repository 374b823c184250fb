"""The journal as the verbs see it: one call for each thing to be written down.

Every call has to come before what it tells can be seen: before an answer leaves, and before a
generation moves because of it. So a cache that ends at any write can be recovered.
"""

from array import array
from collections.abc import Hashable

from kvstore.core.journal.memory import Buffer, JournalMemory
from kvstore.core.journal.records import (
    ABORT_FORM,
    ABORTED,
    NO_PAGE,
    DetachRecord,
    EndRecord,
    LeaseEndedRecord,
    PagesRecord,
    encode,
    parts_of_pages,
)
from kvstore.core.journal.rows import PIN_SCOPE, CounterRow, HoldKey, Row, Table
from kvstore.core.values.slots import Slots

# Page ids are noted this many at a time, so that none is given out twice.
ID_STEP = 1 << 20
# Python 3.11 takes 0.2 us to look a member up in its enumeration.
_HOLDS = Table.HOLDS
_pack_abort = ABORT_FORM.pack
PAGE_IDS, LEASE_NUMBERS = "page ids", "lease numbers"


class Journal:
    """Writes to a journal's memory. Gives pages their ids. Not thread-safe.

    ``next_id`` is that of the next page, and ``next_number`` that of the next record of a
    reservation. All methods raise nothing. Each match writes a pin and each request ends one, so
    ``hold`` and ``release`` are those of the memory, which saves a frame of each.
    """

    def __init__(self, memory: JournalMemory, next_id: int = NO_PAGE + 1) -> None:
        """``next_id`` MUST be more than any id that the memory knows."""
        self.memory = memory
        # Writes a pin or a source pin.
        self.hold = memory.hold
        # Writes that a pin of a lease ends, and leaves a tombstone of its id.
        self.release = memory.release
        self.next_id = next_id
        self.next_number = 1
        self._noted_id = next_id

    def insert(self, count: int, *parts: Buffer) -> int:
        """Writes that so many pages are published, and returns the first one's id.

        ``parts`` are those of a record of pages, whose ids begin at ``next_id``.
        """
        base_id = self.next_id
        self.next_id = base_id + count
        if self.next_id > self._noted_id:
            self._note_ids()
        self.memory.append(*parts)
        return base_id

    def copy(self, record: PagesRecord) -> None:
        """Writes that pages get copies in a tier."""
        self.memory.append(*parts_of_pages(record))

    def reserve(self, *parts: Buffer) -> int | None:
        """Writes all of a reservation: the parts of its record, which has ``next_number``.

        Returns the record's place in the memory, if it has one.
        """
        self.next_number += 1
        return self.memory.append(*parts)

    def detach(self, namespace: int, page_id: int, slots: Slots, generations: "array[int]") -> None:
        """Writes that a page with these copies leaves the index, with everything below it."""
        record = DetachRecord(namespace, page_id, self.next_id, slots, generations)
        self.memory.append(encode(record))

    def end(
        self, namespace: int, above_id: int, page_id: int, tail: bytes, token: int | None
    ) -> None:
        """Writes a next token, or that those within ``tail`` are forgotten."""
        self.memory.append(encode(EndRecord(namespace, above_id, page_id, tail, token)))

    def drop(self, lease: int, pin_id: int) -> None:
        """Writes that a pin ends without a tombstone."""
        self.memory.clear(_HOLDS, HoldKey(lease, PIN_SCOPE, pin_id))

    def abort(self, lease: int, reservation_id: int, place: int | None) -> None:
        """Writes that a reservation ends, and leaves a tombstone. Its records count no more.

        ``place`` is that of its latest record. If the record is still there, one store is enough.
        """
        memory = self.memory
        if place is None or not memory.end_reservation(lease, reservation_id, place):
            memory.append(_pack_abort(ABORTED, 1, lease, reservation_id, self.next_number))

    def withdraw(self, lease: int, reservation_id: int) -> None:
        """Writes that a reservation ends without a tombstone."""
        number = self.next_number
        self.memory.append(_pack_abort(ABORTED, 0, lease, reservation_id, number))

    def end_lease(self, tenant: str, lease_id: bytes) -> None:
        """Writes that a lease id is not granted again."""
        self.memory.append(encode(LeaseEndedRecord(tenant, lease_id)))

    def put(self, table: Table, key: Hashable, row: Row) -> None:
        """Writes a row of a table."""
        self.memory.put(table, key, row)

    def clear(self, table: Table, key: Hashable) -> None:
        """Removes a row of a table."""
        self.memory.clear(table, key)

    def _note_ids(self) -> None:
        self._noted_id = self.next_id + ID_STEP
        self.memory.put(Table.COUNTERS, PAGE_IDS, CounterRow(self._noted_id))
