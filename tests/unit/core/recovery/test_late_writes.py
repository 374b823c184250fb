"""Writes that wait for a memory."""

from kvstore.core.journal.rows import CounterRow, HoldKey, HoldRow, Table, encode_row
from kvstore.core.recovery.late_writes import LateWrites
from recoveries.list_memory import Appended, Buried, Cleared, ListMemory, Put


def test_all_writes_are_done_in_their_order() -> None:
    """One of each kind."""
    late, memory = LateWrites(), ListMemory()
    late.append(b"two ", bytearray(b"parts"))
    # It has no place yet.
    assert not late.end_reservation(1, 2, 0)
    late.put(Table.COUNTERS, "ids", CounterRow(7))
    late.clear(Table.LEASES, 3)
    row = HoldRow(1, 1, 2, 3)
    late.hold(row)
    late.release(1, 2)
    assert memory.writes == []
    late.write_to(memory)
    assert memory.writes == [
        Appended(b"two parts"),
        Put(Table.COUNTERS, "ids", encode_row(CounterRow(7))),
        Cleared(Table.LEASES, 3),
        Put(Table.HOLDS, row.key, encode_row(row)),
        Buried(HoldKey(1, 1, 2)),
        Cleared(Table.HOLDS, HoldKey(1, 1, 2)),
    ]
