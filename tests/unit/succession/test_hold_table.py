"""A table of holds: rows are live, tombstones or free, and a killed process leaves each whole."""

import random
import struct

import pytest

from kvstore.core.journal.rows import PIN_SCOPE, HoldKey, HoldRow
from kvstore.ring import JournalDamaged, NeverCreated, WrongMemory
from kvstore.succession.journal.hold_rows import HoldsBeside
from kvstore.succession.journal.hold_table import HoldTable
from rings.recording_memory import WriteLog

IDENTITY = b"sixteen random b"


def hold(number: int) -> HoldRow:
    """Returns a hold."""
    return HoldRow(3, PIN_SCOPE, number, 1, number * 7)


def put(table: HoldTable, *numbers: int) -> list[bool]:
    """Puts some holds."""
    return [table.put(hold(number)) for number in numbers]


def numbers(table: HoldTable) -> tuple[set[int], list[int]]:
    """Returns the numbers of the holds, each of which is right, and of the tombstones."""
    assert all(each == hold(each.hold_id) for each in table.rows())
    return {each.hold_id for each in table.rows()}, [each.hold_id for each in table.tombstones()]


@pytest.fixture
def memory() -> memoryview:
    """Returns memory for five rows, with other bytes in it."""
    return memoryview(bytearray(b"\xa5" * (128 + 5 * 64)))


def test_holds_are_found_by_another_start(memory: memoryview) -> None:
    """Live ones and tombstones are there, and those that were cleared are not."""
    table = HoldTable.create(memory, IDENTITY)
    put(table, 1, 2, 3)
    assert table.clear(hold(2).key)
    assert not table.clear(hold(2).key)
    table.bury(hold(3).key)
    table.bury(HoldKey(3, PIN_SCOPE, 9))
    for each in (table, HoldTable.open(memory)):
        assert numbers(each) == ({1}, [3, 9])


def test_rows_that_ended_first_are_used_first(memory: memoryview) -> None:
    """The table takes as many holds as it has rows. A tombstone goes when its row is used."""
    table = HoldTable.create(memory, IDENTITY)
    assert put(table, 1, 2, 3, 4, 5, 6, 1) == [True] * 5 + [False] * 2
    # Without a row there is no tombstone of an unknown id.
    table.bury(HoldKey(3, PIN_SCOPE, 9))
    assert numbers(table) == ({1, 2, 3, 4, 5}, [])
    for number in (4, 2, 5):
        table.bury(hold(number).key)
    assert numbers(table) == ({1, 3}, [4, 2, 5])
    assert put(table, 7) == [True]
    assert numbers(table) == ({1, 3, 7}, [2, 5])
    table = HoldTable.open(memory)
    assert put(table, 8, 9, 10) == [True, True, False]
    assert numbers(table) == ({1, 3, 7, 8, 9}, [])


def test_unfit_fields_change_nothing(memory: memoryview) -> None:
    """Numbers that a row does not take raise, and take no row."""
    table = HoldTable.create(memory, IDENTITY)
    with pytest.raises(struct.error):
        table.put(hold(1)._replace(lease=1 << 32))
    assert put(table, 1, 2, 3, 4, 5) == [True] * 5


@pytest.mark.parametrize("buried", [False, True])
def test_a_stray_write_is_found(memory: memoryview, *, buried: bool) -> None:
    """Any changed bit of a row that is not free is found."""
    table = HoldTable.create(memory, IDENTITY)
    put(table, 1)
    if buried:
        table.bury(hold(1).key)
    for at in range(128, 128 + 64):
        for bit in range(8):
            memory[at] ^= 1 << bit
            with pytest.raises(JournalDamaged, match="row 0"):
                HoldTable.open(memory)
            memory[at] ^= 1 << bit
    table.clear(hold(1).key)


def test_what_was_read_beside_the_writer_makes_no_difference() -> None:
    """A start finds the same, and uses free rows first, whatever changed since it read beside."""
    memory = memoryview(bytearray(128 + 200 * 64))
    table = HoldTable.create(memory, IDENTITY)
    chosen, last = random.Random(5), 0
    for _ in range(40):
        beside = HoldsBeside(memory)
        assert {each.hold_id for each in beside.rows} == numbers(table)[0]
        for _ in range(chosen.choice((0, 1, 5, 60))):
            last += 1
            table.put(hold(last))
            chosen.choice((table.bury, table.clear))(hold(chosen.randint(1, last)).key)
        opened, plain = HoldTable.open(memory, beside), HoldTable.open(memory)
        assert numbers(opened)[0] == numbers(plain)[0] == numbers(table)[0]
        # An unknown id may have two.
        buried = sorted(table.tombstones())
        for each in (opened, plain):
            assert sorted(each.tombstones()) == sorted(each.found_tombstones) == buried
        free = 200 - len(numbers(table)[0]) - len(buried)
        other = HoldTable.open(memoryview(bytearray(memory)), beside)
        assert put(other, *range(last + 1, last + 1 + free)) == [True] * free
        assert sorted(other.tombstones()) == buried


@pytest.mark.parametrize("buried", [False, True])
def test_a_row_that_changed_while_it_was_read_is_read_again(
    memory: memoryview, *, buried: bool
) -> None:
    """It is no hold beside the writer. At the start it is whole, or it is damage."""
    table = HoldTable.create(memory, IDENTITY)
    put(table, 1)
    if buried:
        table.bury(hold(1).key)
    memory[128 + 20] ^= 1
    beside = HoldsBeside(memory)
    assert beside.rows == []
    with pytest.raises(JournalDamaged, match="row 0"):
        HoldTable.open(memory, beside)
    memory[128 + 20] ^= 1
    assert numbers(HoldTable.open(memory, beside)) == numbers(table)


def test_a_stray_write_after_the_first_reading_is_found(memory: memoryview) -> None:
    """Each word of a row is compared."""
    table = HoldTable.create(memory, IDENTITY)
    put(table, 1, 2)
    beside = HoldsBeside(memory)
    for at in range(128 + 64, 128 + 128):
        memory[at] ^= 1
        with pytest.raises(JournalDamaged, match="row 1"):
            HoldTable.open(memory, beside)
        memory[at] ^= 1


def test_what_was_read_of_another_table_is_not_used(memory: memoryview) -> None:
    """The table was made anew since."""
    put(HoldTable.create(memory, IDENTITY), 1)
    beside = HoldsBeside(memory)
    HoldTable.create(memory, IDENTITY[::-1])
    assert numbers(HoldTable.open(memory, beside)) == (set(), [])


def test_another_memory_is_refused(memory: memoryview) -> None:
    """The size of the memory has to be that of create."""
    HoldTable.create(memory, IDENTITY)
    with pytest.raises(WrongMemory):
        HoldTable.open(memoryview(bytearray(memory) + bytes(64)))


@pytest.mark.no_cover
def test_holds_survive_each_cut() -> None:
    """A hold is live from its put to its end, and a tombstone is there from then on."""
    log = WriteLog()
    table = HoldTable.create(log.memory(b"\x5a" * (128 + 5 * 64)), IDENTITY)
    log.say("created")
    for number in range(1, 12):
        log.say("begun", number)
        assert put(table, number) == [True]
        log.say("added", number)
        if number > 3:
            log.say("leaves", number - 3)
            table.bury(hold(number - 3).key)
            log.say("gone", number - 3)
    for crash in log.crashes():
        try:
            opened = HoldTable.open(crash.images[0])
        except NeverCreated:
            assert not crash.said["created"]
            continue
        live, buried = numbers(opened)
        assert live.issubset(crash.said["begun"])
        assert live.issuperset({*crash.said["added"]}.difference(crash.said["leaves"]))
        assert live.isdisjoint(crash.said["gone"])
        assert set(buried).issubset(crash.said["leaves"])
        assert set(buried).issuperset(crash.said["gone"][-1:])
