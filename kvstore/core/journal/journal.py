"""The journal as the verbs see it: one call for each thing to be written down.

Every call has to come before what it tells can be seen: before an answer leaves, and before a
generation moves because of it. So a cache that ends at any write can be recovered.
"""

from array import array
from collections.abc import Hashable

from kvstore.core.journal.memory import JournalMemory
from kvstore.core.journal.records import (
    NO_PAGE,
    DetachRecord,
    EndRecord,
    PagesRecord,
    ReserveRecord,
    encode,
    parts_of_pages,
    parts_of_reservation,
)
from kvstore.core.journal.rows import CounterRow, HoldKey, HoldRow, Row, Table
from kvstore.core.values.slots import Slots

# Page ids are noted this many at a time, so that none is given out twice.
ID_STEP = 1 << 20
# A named tuple's constructor costs a Python frame.
_new_tuple = tuple.__new__
# Python 3.11 takes 0.2 us to look a member up in its enumeration.
_HOLDS = Table.HOLDS
PAGE_IDS, LEASE_NUMBERS = "page ids", "lease numbers"


class Journal:
    """Writes to a journal's memory. Gives pages their ids. Not thread-safe.

    ``next_id`` is that of the next page, and ``next_number`` that of the next record of a
    reservation. All methods raise nothing.
    """

    def __init__(self, memory: JournalMemory, next_id: int = NO_PAGE + 1) -> None:
        """``next_id`` MUST be more than any id that the memory knows."""
        self.memory = memory
        self.next_id = next_id
        self.next_number = 1
        self._noted_id = next_id

    def insert(self, record: PagesRecord) -> int:
        """Writes that pages are published, whose ids begin at ``next_id``; returns the first."""
        base_id = self.next_id
        self.next_id = base_id + len(record.slots)
        if self.next_id > self._noted_id:
            self._note_ids()
        self.memory.append(*parts_of_pages(record))
        return base_id

    def copy(self, record: PagesRecord) -> None:
        """Writes that pages get copies in a tier."""
        self.memory.append(*parts_of_pages(record))

    def reserve(self, record: ReserveRecord) -> None:
        """Writes all of a reservation. The record has ``next_number`` for its number."""
        self.next_number = record.number + 1
        self.memory.append(*parts_of_reservation(record))

    def detach(self, namespace: int, page_id: int, slots: Slots, generations: "array[int]") -> None:
        """Writes that a page with these copies leaves the index, with everything below it."""
        record = DetachRecord(namespace, page_id, self.next_id, slots, generations)
        self.memory.append(encode(record))

    def end(
        self, namespace: int, above_id: int, page_id: int, tail: bytes, token: int | None
    ) -> None:
        """Writes a next token, or that those within ``tail`` are forgotten."""
        self.memory.append(encode(EndRecord(namespace, above_id, page_id, tail, token)))

    def hold(self, row: HoldRow) -> None:
        """Writes a hold of a lease."""
        self.memory.put(_HOLDS, _new_tuple(HoldKey, row[:3]), row)

    def release(self, lease: int, kind: int, hold_id: int) -> None:
        """Writes that a hold ends, and leaves a tombstone of its id."""
        key = _new_tuple(HoldKey, (lease, kind, hold_id))
        self.memory.bury(key)
        self.memory.clear(_HOLDS, key)

    def drop(self, lease: int, kind: int, hold_id: int) -> None:
        """Writes that a hold ends without a tombstone."""
        self.memory.clear(_HOLDS, HoldKey(lease, kind, hold_id))

    def put(self, table: Table, key: Hashable, row: Row) -> None:
        """Writes a row of a table."""
        self.memory.put(table, key, row)

    def clear(self, table: Table, key: Hashable) -> None:
        """Removes a row of a table."""
        self.memory.clear(table, key)

    def _note_ids(self) -> None:
        self._noted_id = self.next_id + ID_STEP
        self.memory.put(Table.COUNTERS, PAGE_IDS, CounterRow(self._noted_id))
