"""The last ids that were released."""

import struct

import pytest

from kvstore.journal import JournalDamaged, TombstoneRing, WrongMemory

IDENTITY = b"sixteen random b"
ID = struct.Struct("=QQ")
COUNT = 4


@pytest.fixture
def memory() -> memoryview:
    """Returns memory for four entries."""
    return memoryview(bytearray(192 + COUNT * 24))


def test_the_last_entries_are_found_by_another_start(memory: memoryview) -> None:
    """The ring has the last four entries, the oldest first, at each length and after each lap."""
    ring = TombstoneRing.create(memory, IDENTITY, ID)
    written: list[tuple[int, int]] = []
    for number in range(4 * COUNT):
        for each in (ring, TombstoneRing.open(memory, ID)):
            assert list(each.entries()) == written[-COUNT:]
            assert len(each) == min(number, COUNT)
        written.append((number, number << 32))
        ring.append(*written[-1])


def test_an_opened_ring_goes_on(memory: memoryview) -> None:
    """A start writes behind the entries that it found."""
    ring = TombstoneRing.create(memory, IDENTITY, ID)
    for number in range(3 * COUNT):
        ring.append(number, 7)
        ring = TombstoneRing.open(memory, ID)
    assert list(ring.entries()) == [(number, 7) for number in range(2 * COUNT, 3 * COUNT)]


def test_an_entry_that_was_not_acknowledged_counts(memory: memoryview) -> None:
    """A start goes on behind an entry that the stored count leaves out."""
    ring = TombstoneRing.create(memory, IDENTITY, ID)
    for number in range(3 * COUNT):
        ring.append(number, 7)
        memory.cast("Q")[16] = number
        ring = TombstoneRing.open(memory, ID)
    assert list(ring.entries()) == [(number, 7) for number in range(2 * COUNT, 3 * COUNT)]


def test_unfit_fields_change_nothing(memory: memoryview) -> None:
    """Fields that the layout refuses are not written."""
    ring = TombstoneRing.create(memory, IDENTITY, ID)
    with pytest.raises(struct.error):
        ring.append(-1, 0)
    assert len(TombstoneRing.open(memory, ID)) == 0


def test_a_stray_write_is_found(memory: memoryview) -> None:
    """Any changed byte of an entry is found, except of the oldest one, which is forgotten."""
    ring = TombstoneRing.create(memory, IDENTITY, ID)
    for number in range(COUNT + 1):
        ring.append(number, 7)
    for at in range(192, 192 + COUNT * 24):
        memory[at] ^= 1
        if 192 + 24 <= at < 192 + 48:
            assert list(TombstoneRing.open(memory, ID).entries()) == [(2, 7), (3, 7), (4, 7)]
        else:
            with pytest.raises(JournalDamaged, match="tombstones up to 5"):
                TombstoneRing.open(memory, ID)
        memory[at] ^= 1


def test_a_damaged_count_is_found(memory: memoryview) -> None:
    """A count that leaves out more than one entry, or has more than there are, is damage."""
    ring = TombstoneRing.create(memory, IDENTITY, ID)
    for number in range(3):
        ring.append(number, 7)
    words = memory.cast("Q")
    words[16] = 2
    assert len(TombstoneRing.open(memory, ID)) == 3
    for count in (0, 1, 4, 1 << 63, (1 << 64) - 1):
        words[16] = count
        with pytest.raises(JournalDamaged):
            TombstoneRing.open(memory, ID)


def test_another_ring_is_refused(memory: memoryview) -> None:
    """The layout and the size have to be those of create."""
    TombstoneRing.create(memory, IDENTITY, ID)
    larger = memoryview(bytearray(memory) + bytes(24))
    for wrong, layout in ((memory, struct.Struct("=QII")), (larger, ID)):
        with pytest.raises(WrongMemory):
            TombstoneRing.open(wrong, layout)
