"""The interface of a journal's memory: what outlives the process that writes."""

from array import array
from collections.abc import Hashable
from typing import Protocol, TypeAlias

from kvstore.core.journal.rows import HoldRow, Row, Table

Buffer: TypeAlias = "bytes | bytearray | array[int]"


class JournalMemory(Protocol):
    """Records in order, the rows of tables, and tombstones. Each call is one write.

    A write is done when the call returns, and it is done whole or not at all. Nothing here
    raises: memory that runs full makes room by itself. Not thread-safe.
    """

    def append(self, *parts: Buffer) -> int | None:
        """Adds a record, given in parts, after all others.

        Returns its place, or None if it cannot be found there again.
        """
        ...

    def end_reservation(self, lease: int, reservation_id: int, place: int) -> bool:
        """Ends a reservation, whose latest record is at a place, and leaves a tombstone of its id.

        Returns False, and changes nothing, if the record is at another place by now.
        """
        ...

    def hold(self, row: HoldRow) -> None:
        """Puts the row of a pin or a source pin."""
        ...

    def put(self, table: Table, key: Hashable, row: Row) -> None:
        """Puts a row of any other table in place of the one of its key, if there is one."""
        ...

    def clear(self, table: Table, key: Hashable) -> None:
        """Removes the row of a key. An unknown key has none."""
        ...

    def release(self, lease: int, pin_id: int) -> None:
        """Leaves a tombstone of a pin's id, then removes its row. May forget the oldest one."""
        ...
