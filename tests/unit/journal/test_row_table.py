"""A table of rows that are written once and removed."""

import struct

import pytest

from kvstore.journal import JournalDamaged, RowTable, TableFull, WrongMemory

IDENTITY = b"sixteen random b"
# Rows of 64 bytes with the state word.
HOLD = struct.Struct("=QQ40s")
NAME = "holds"


def hold(number: int) -> tuple[int, int, bytes]:
    """Returns the fields of a row."""
    return number, number << 40, str(number).encode().ljust(40, b"\0")


@pytest.fixture
def memory() -> memoryview:
    """Returns memory for five rows."""
    return memoryview(bytearray(128 + 5 * 64))


def test_rows_are_found_by_another_start(memory: memoryview) -> None:
    """Live rows are there with their fields and numbers, removed ones are not."""
    table = RowTable.create(memory, IDENTITY, NAME, HOLD)
    rows = [table.add(*hold(number)) for number in range(4)]
    table.remove(rows[1])
    for each in (table, RowTable.open(memory, NAME, HOLD)):
        assert list(each.rows()) == [(rows[n], hold(n)) for n in (0, 2, 3)]
        assert (len(each), each.row_count) == (3, 5)


def test_a_removed_row_is_used_again(memory: memoryview) -> None:
    """The table takes as many rows as it has, and more once some are removed."""
    table = RowTable.create(memory, IDENTITY, NAME, HOLD)
    rows = [table.add(*hold(number)) for number in range(5)]
    assert sorted(rows) == [0, 1, 2, 3, 4]
    with pytest.raises(TableFull, match="all 5 rows"):
        table.add(*hold(5))
    table.remove(2)
    table = RowTable.open(memory, NAME, HOLD)
    assert table.add(*hold(6)) == 2
    assert dict(table.rows())[2] == hold(6)


def test_a_free_row_is_not_removed(memory: memoryview) -> None:
    """A row that is freed twice would be given to two owners."""
    table = RowTable.create(memory, IDENTITY, NAME, HOLD)
    row = table.add(*hold(1))
    table.remove(row)
    with pytest.raises(KeyError):
        table.remove(row)
    for wrong in (-1, 5):
        with pytest.raises(IndexError, match="5 rows"):
            table.remove(wrong)


def test_unfit_fields_change_nothing(memory: memoryview) -> None:
    """Fields that the layout refuses take no row."""
    table = RowTable.create(memory, IDENTITY, NAME, HOLD)
    with pytest.raises(struct.error):
        table.add(-1, 0, b"")
    assert len(table) == 0


def test_a_stray_write_is_found(memory: memoryview) -> None:
    """Any changed byte of a live row is found, those of a free row's fields mean nothing."""
    table = RowTable.create(memory, IDENTITY, NAME, HOLD)
    row = table.add(*hold(1))
    start = 128 + 64 * row
    for at in range(start, start + 64):
        memory[at] ^= 1
        with pytest.raises(JournalDamaged, match=f"row {row} of 'holds'"):
            RowTable.open(memory, NAME, HOLD)
        memory[at] ^= 1
    table.remove(row)
    memory[start + 8] ^= 1
    assert list(RowTable.open(memory, NAME, HOLD).rows()) == []


def test_another_table_is_refused(memory: memoryview) -> None:
    """The name, the layout and the size of the memory have to be those of create."""
    RowTable.create(memory, IDENTITY, NAME, HOLD)
    larger = memoryview(bytearray(memory) + bytes(64))
    for wrong, name, layout in (
        (memory, "pins", HOLD),
        (memory, NAME, struct.Struct("=QQ32sQ")),
        (memory, NAME, struct.Struct("=Q")),
        (larger, NAME, HOLD),
    ):
        with pytest.raises(WrongMemory):
            RowTable.open(wrong, name, layout)
