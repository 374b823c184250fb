"""A journal that is read beside its writer, and the start that takes what was read for granted."""

import pytest

from kvstore.core.journal.rows import CounterRow, HoldRow, IdScope, Table
from kvstore.ring import JournalDamaged, JournalUnusable, NeverCreated, OtherVersion
from kvstore.succession.journal import durable_journal, journal_ahead
from kvstore.succession.journal.durable_journal import DurableJournal
from kvstore.succession.journal.journal_ahead import JournalAhead
from kvstore.succession.journal.store_row import StoreRow

STORE = StoreRow(7, 1, b"key", b"settings")
SIZE_BYTES = 64 << 10


class World:
    """A journal and its memory."""

    def __init__(self) -> None:
        self.memories: dict[str, memoryview] = {}
        self.journal = DurableJournal.create(self._make, SIZE_BYTES, STORE)

    def _make(self, name: str, size_bytes: int) -> memoryview:
        self.memories[name] = memoryview(bytearray(size_bytes))
        return self.memories[name]


@pytest.fixture
def world() -> World:
    """Provides a journal without rows."""
    return World()


def pin(hold_id: int) -> HoldRow:
    """Returns the row of a pin."""
    return HoldRow(1, int(IdScope.PIN), hold_id, 1, 5)


def test_it_has_what_is_written(world: World) -> None:
    """The store, rows, holds of the table and of the ring, and records in their order."""
    world.journal.put(Table.COUNTERS, "ids", CounterRow(5))
    world.journal.hold(pin(3))
    large = pin(4)._replace(groups=((1, 0, 1),), group_pages=((9, 1),))
    world.journal.hold(large)
    world.journal.release(1, 6)
    world.journal.append(b"\7lease")
    store, contents = JournalAhead(world.memories).contents()
    assert store == STORE
    assert contents.rows[Table.COUNTERS] == {"ids": CounterRow(5)}
    assert contents.rows[Table.HOLDS] == {each.key: each for each in (pin(3), large)}
    assert list(contents.records) == [b"\7lease"]


def test_a_start_knows_what_it_read(world: World) -> None:
    """All records before the last reading are known, and all rows are those of a plain start."""
    world.journal.append(b"\7one")
    world.journal.hold(pin(3))
    ahead = JournalAhead(world.memories)
    ahead.contents()
    world.journal.append(b"\7two")
    world.journal.hold(pin(4))
    world.journal.release(1, 3)
    found = DurableJournal.open(world.memories, ahead).contents()
    plain = DurableJournal.open(world.memories).contents()
    assert (found.known_count, plain.known_count) == (1, 0)
    assert list(found.records) == list(plain.records) == [b"\7one", b"\7two"]
    assert found.rows == plain.rows
    assert list(found.tombstones) == list(plain.tombstones)


def test_a_hold_that_is_written_just_then_is_left_out(world: World) -> None:
    """A later reading has it, and so has the start."""
    world.journal.hold(pin(3))
    memory = world.memories["journal-holds"]
    memory[128 + 30] ^= 1
    ahead = JournalAhead(world.memories)
    assert ahead.contents()[1].rows[Table.HOLDS] == {}
    memory[128 + 30] ^= 1
    assert list(DurableJournal.open(world.memories, ahead).contents().rows[Table.HOLDS]) == [
        pin(3).key
    ]


def test_a_damaged_hold_is_found_by_the_start(world: World) -> None:
    """A row that changed since is compared with its sum."""
    ahead = JournalAhead(world.memories)
    ahead.contents()
    world.journal.hold(pin(3))
    world.memories["journal-holds"][128 + 30] ^= 1
    with pytest.raises(JournalUnusable, match="the hold in row 0 is damaged"):
        DurableJournal.open(world.memories, ahead)


def test_a_stray_write_to_a_hold_that_was_read_is_found(world: World) -> None:
    """Its bytes are used once more, although its state is the same."""
    world.journal.hold(pin(3))
    ahead = JournalAhead(world.memories)
    ahead.contents()
    world.memories["journal-holds"][128 + 30] ^= 1
    with pytest.raises(JournalUnusable, match="the hold in row 0 is damaged"):
        DurableJournal.open(world.memories, ahead)


def test_it_waits_for_the_writer_to_clean(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the oldest record changes, or for some seconds, although it writes meanwhile."""
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        world.journal.append(b"\7later")
        if len(waits) <= cleaned:
            world.journal.clean_before(world.journal.end, 1)

    monkeypatch.setattr(journal_ahead, "sleep", sleep)
    ahead, cleaned = JournalAhead(world.memories), 0
    ahead.wait_cleaned(1.0)
    assert len(waits) == journal_ahead.QUIET_LOOKS
    waits, cleaned = [], 5
    ahead.wait_cleaned(1.0)
    assert len(waits) == 5 + journal_ahead.QUIET_LOOKS
    waits, cleaned = [], 1000
    ahead.wait_cleaned(0.5)
    assert len(waits) == round(0.5 / journal_ahead.LOOK_SECONDS)


def test_a_row_that_cannot_be_read_is_damage(world: World) -> None:
    """A start says the same of it."""
    world.journal.put(Table.COUNTERS, "ids", CounterRow(5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(durable_journal, "encode_row", lambda _: b"no row")
        world.journal.put(Table.COUNTERS, "ids", CounterRow(6))
    with pytest.raises(JournalDamaged, match="rows cannot be read"):
        JournalAhead(world.memories).contents()
    with pytest.raises(JournalDamaged, match="rows cannot be read"):
        DurableJournal.open(world.memories)


def test_it_refuses_what_a_start_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that is absent, that has no store, or of another version."""
    with pytest.raises(NeverCreated):
        JournalAhead({})
    with monkeypatch.context() as patch:
        patch.setattr(durable_journal, "JOURNAL_VERSION", 99)
        other = World()
    with pytest.raises(OtherVersion, match="version 99"):
        JournalAhead(other.memories).contents()
    with monkeypatch.context() as patch:
        patch.setattr(DurableJournal, "replace_store", lambda *_: None)
        without = World()
    with pytest.raises(JournalUnusable, match="no store yet"):
        JournalAhead(without.memories).contents()
