"""Writes of a recovery, which wait until the cache goes on."""

from collections.abc import Callable, Hashable

from kvstore.core.journal.memory import Buffer, JournalMemory
from kvstore.core.journal.rows import HoldRow, Row, Table


class LateWrites:
    """A journal's memory that keeps its writes until there is another one for them."""

    def __init__(self) -> None:
        self._writes: list[Callable[[JournalMemory], object]] = []

    def write_to(self, memory: JournalMemory) -> None:
        """Does all writes in their order."""
        for write in self._writes:
            write(memory)

    def append(self, *parts: Buffer) -> None:
        """Adds a record."""
        record = b"".join(parts)
        self._writes.append(lambda memory: memory.append(record))

    def end_reservation(self, lease: int, reservation_id: int, place: int) -> bool:
        """Returns False: no record here has a place."""
        del lease, reservation_id, place
        return False

    def hold(self, row: HoldRow) -> None:
        """Puts the row of a pin."""
        self._writes.append(lambda memory: memory.hold(row))

    def put(self, table: Table, key: Hashable, row: Row) -> None:
        """Puts a row."""
        self._writes.append(lambda memory: memory.put(table, key, row))

    def clear(self, table: Table, key: Hashable) -> None:
        """Removes a row."""
        self._writes.append(lambda memory: memory.clear(table, key))

    def release(self, lease: int, pin_id: int) -> None:
        """Leaves a tombstone, and removes a pin's row."""
        self._writes.append(lambda memory: memory.release(lease, pin_id))
