"""A table of rows that change, with two copies of each."""

import pytest

from kvstore.journal import CheckedRows, JournalDamaged, TableFull, WrongMemory

IDENTITY = b"sixteen random b"
NAME = "leases"
BODY_BYTES = 20
COPY_BYTES = 24 + 24


@pytest.fixture
def memory() -> memoryview:
    """Returns memory for three rows."""
    return memoryview(bytearray(128 + 3 * 2 * COPY_BYTES))


def test_rows_are_found_by_another_start(memory: memoryview) -> None:
    """Each live row has its last body, and a removed one is not there."""
    table = CheckedRows.create(memory, IDENTITY, NAME, BODY_BYTES)
    first, second, third = table.add(b""), table.add(b"two"), table.add(bytearray(b"three"))
    table.replace(first, b"one" * 6)
    table.replace(first, memoryview(b"first"))
    table.remove(second)
    for each in (table, CheckedRows.open(memory, NAME, BODY_BYTES)):
        assert list(each.rows()) == [(first, b"first"), (third, b"three")]
        assert each.read(third) == b"three"
        assert (len(each), each.row_count) == (2, 3)
        for call in (each.read, each.remove, lambda row, each=each: each.replace(row, b"")):
            with pytest.raises(KeyError):
                call(second)


def test_a_removed_row_is_used_again(memory: memoryview) -> None:
    """The table takes as many rows as it has, and more once some are removed."""
    table = CheckedRows.create(memory, IDENTITY, NAME, BODY_BYTES)
    assert sorted(table.add(b"a row") for _ in range(3)) == [0, 1, 2]
    with pytest.raises(TableFull, match="all 3 rows"):
        table.add(b"more")
    table.remove(1)
    table = CheckedRows.open(memory, NAME, BODY_BYTES)
    assert table.add(b"again") == 1
    assert CheckedRows.open(memory, NAME, BODY_BYTES).read(1) == b"again"


def test_a_long_body_changes_nothing(memory: memoryview) -> None:
    """A body has a largest size, which fits."""
    table = CheckedRows.create(memory, IDENTITY, NAME, BODY_BYTES)
    row = table.add(bytes(BODY_BYTES))
    for call in (table.add, lambda body: table.replace(row, body)):
        with pytest.raises(ValueError, match="at most 20 bytes, not 21"):
            call(bytes(BODY_BYTES + 1))
    assert list(CheckedRows.open(memory, NAME, BODY_BYTES).rows()) == [(row, bytes(BODY_BYTES))]


def test_a_change_that_was_cut_off_is_made_again(memory: memoryview) -> None:
    """A copy that was written in part does not count, and the next change goes there."""
    table = CheckedRows.create(memory, IDENTITY, NAME, BODY_BYTES)
    row = table.add(b"former")
    table.replace(row, b"newest")
    memory[128 + 8 : 128 + COPY_BYTES] = b"x" * (COPY_BYTES - 8)
    opened = CheckedRows.open(memory, NAME, BODY_BYTES)
    assert opened.read(row) == b"newest"
    opened.replace(row, b"again")
    assert CheckedRows.open(memory, NAME, BODY_BYTES).read(row) == b"again"


def test_a_stray_write_is_found(memory: memoryview) -> None:
    """A changed byte of the newest copy is found, and of the older one's number.

    The rest of the older copy is read no more.
    """
    table = CheckedRows.create(memory, IDENTITY, NAME, BODY_BYTES)
    row = table.add(b"former" * 3)
    table.replace(row, b"newest" * 3)
    # The last of the numbers 2 to 5, so the copy with odd numbers.
    newest = 128 + COPY_BYTES
    found = set()
    for at in range(128, 128 + 2 * COPY_BYTES):
        memory[at] ^= 0x10
        try:
            CheckedRows.open(memory, NAME, BODY_BYTES)
            assert table.read(row) == b"newest" * 3
        except JournalDamaged:
            found.add(at)
            with pytest.raises(JournalDamaged, match="row 0"):
                table.read(row)
        memory[at] ^= 0x10
    assert found == {*range(newest, newest + 24 + 18), *range(128, 136)}


def test_zeros_over_the_newest_copy_are_found(memory: memoryview) -> None:
    """The older copy never stands in for one that a stray write cleared."""
    table = CheckedRows.create(memory, IDENTITY, NAME, BODY_BYTES)
    row = table.add(b"a body")
    for start in (128, 128 + COPY_BYTES, 128):
        copy = bytes(memory[start : start + COPY_BYTES])
        memory[start : start + COPY_BYTES] = bytes(COPY_BYTES)
        with pytest.raises(JournalDamaged, match="row 0"):
            CheckedRows.open(memory, NAME, BODY_BYTES)
        memory[start : start + COPY_BYTES] = copy
        table.replace(row, b"the next")


def test_a_live_row_that_reads_as_free_is_damaged(memory: memoryview) -> None:
    """A row that another writer removed under this one is not served."""
    table = CheckedRows.create(memory, IDENTITY, NAME, BODY_BYTES)
    row = table.add(b"a row")
    CheckedRows.open(memory, NAME, BODY_BYTES).remove(row)
    with pytest.raises(JournalDamaged, match="row 0"):
        table.read(row)


def test_another_table_is_refused(memory: memoryview) -> None:
    """The name and the size of bodies have to be those of create."""
    CheckedRows.create(memory, IDENTITY, NAME, BODY_BYTES)
    for name, size in (("extents", BODY_BYTES), (NAME, BODY_BYTES + 1)):
        with pytest.raises(WrongMemory):
            CheckedRows.open(memory, name, size)
