"""A stand-in for a journal's memory: what a journal writes, without what keeps it."""

from collections.abc import Hashable

from kvstore.core.journal.memory import Buffer
from kvstore.core.journal.rows import (
    PIN_SCOPE,
    HoldKey,
    HoldRow,
    Row,
    Table,
    encode_hold,
    encode_row,
)
from kvstore.core.recovery.written import JournalContents

SEGMENT_BYTES = 64 << 20


def touched_memory(size_bytes: int) -> memoryview:
    """Returns memory whose pages the kernel allocated already, as it did a server's."""
    return memoryview(bytearray(bytes(size_bytes)))


class BufferMemory:
    """A journal's memory in this process: it wraps, and nothing is ever read.

    ``record_bytes`` and ``row_bytes`` count what was written.
    """

    def __init__(self) -> None:
        self._bytes = touched_memory(SEGMENT_BYTES)
        self._at = 0
        self._rows: dict[Hashable, bytes] = {}
        self._tombstones: list[tuple[int, int, int] | None] = [None] * (1 << 16)
        self._buried = 0
        self.record_bytes = 0

    def append(self, *parts: Buffer) -> int:
        """Adds a record."""
        record = b"".join(parts)
        if self._at + len(record) > SEGMENT_BYTES:
            self._at = 0
        self._bytes[self._at : self._at + len(record)] = record
        self._at += len(record)
        self.record_bytes += len(record)
        return self._at

    def end_reservation(self, lease: int, reservation_id: int, place: int) -> bool:
        """Ends a reservation, by one store."""
        del lease, reservation_id
        self._bytes[place - 1] ^= 1
        return True

    def hold(self, row: HoldRow) -> None:
        """Puts the row of a pin."""
        self._rows[row[:3]] = encode_hold(row)

    def put(self, table: Table, key: Hashable, row: Row) -> None:
        """Puts a row."""
        del table
        self._rows[key] = encode_row(row)

    def clear(self, table: Table, key: Hashable) -> None:
        """Removes a row."""
        del table
        self._rows.pop(key, None)

    def release(self, lease: int, pin_id: int) -> None:
        """Leaves a tombstone, and removes a pin's row."""
        key = lease, PIN_SCOPE, pin_id
        self._rows.pop(key, None)
        self._tombstones[self._buried % len(self._tombstones)] = key
        self._buried += 1


class KeptMemory:
    """A journal's memory that keeps everything, for a recovery."""

    def __init__(self) -> None:
        self._records: list[bytes] = []
        self._rows: dict[Table, dict[Hashable, Row]] = {}
        self._tombstones: list[HoldKey] = []

    def append(self, *parts: Buffer) -> None:
        """Adds a record."""
        self._records.append(b"".join(parts))

    def end_reservation(self, lease: int, reservation_id: int, place: int) -> bool:
        """Returns False: no record has a place."""
        del lease, reservation_id, place
        return False

    def hold(self, row: HoldRow) -> None:
        """Puts the row of a pin."""
        self.put(Table.HOLDS, row.key, row)

    def put(self, table: Table, key: Hashable, row: Row) -> None:
        """Puts a row."""
        self._rows.setdefault(table, {})[key] = row

    def clear(self, table: Table, key: Hashable) -> None:
        """Removes a row."""
        self._rows.get(table, {}).pop(key, None)

    def release(self, lease: int, pin_id: int) -> None:
        """Leaves a tombstone, and removes a pin's row."""
        key = HoldKey(lease, PIN_SCOPE, pin_id)
        self._tombstones.append(key)
        self.clear(Table.HOLDS, key)

    def contents(self) -> JournalContents:
        """Returns it as recovery reads it."""
        return JournalContents(self._records, self._rows, self._tombstones)
