"""A journal's memory as a list of writes, and what remains after the first of them."""

from array import array
from bisect import bisect_left
from collections.abc import Hashable
from typing import NamedTuple, Self, SupportsIndex, TypeAlias

from kvstore.core.cache import PrefixCache
from kvstore.core.journal.memory import Buffer
from kvstore.core.journal.records import AbortRecord, ReserveRecord, decode, encode
from kvstore.core.journal.rows import (
    PIN_SCOPE,
    HoldKey,
    HoldRow,
    Row,
    Table,
    decode_row,
    encode_row,
)
from kvstore.core.recovery.written import JournalContents


class Appended(NamedTuple):
    """A record."""

    record: bytes


class Put(NamedTuple):
    """A row, in its bytes."""

    table: Table
    key: Hashable
    row: bytes


class Cleared(NamedTuple):
    """A row that is gone."""

    table: Table
    key: Hashable


class Buried(NamedTuple):
    """A tombstone."""

    key: HoldKey


class Moved(NamedTuple):
    """A slot's new generation."""

    extent_id: int
    index: int
    generation: int


class Made(NamedTuple):
    """An extent's table of generations, all of them zero."""

    extent_id: int
    slot_count: int


class Found(NamedTuple):
    """All that is found, in place of all that was found before.

    ``places`` are those of the records in the journal's memory, which ends at ``end``.
    """

    contents: JournalContents
    places: list[int]
    end: int


class Moment(NamedTuple):
    """All that was written at one time. ``end`` is the place of the next record."""

    contents: JournalContents
    generations: "dict[int, array[int]]"
    end: int


Write: TypeAlias = Appended | Put | Cleared | Buried | Moved | Made | Found


class WatchedGenerations(array):  # type: ignore[type-arg]
    """The generations of an extent, each change of which is a write."""

    def __new__(cls, extent_id: int, slot_count: int, writes: list[Write]) -> Self:
        """Makes a table of zeros."""
        made = super().__new__(cls, "Q", bytes(8 * slot_count))
        made.extent_id, made.writes = extent_id, writes
        writes.append(Made(extent_id, slot_count))
        return made

    extent_id: int
    writes: list[Write]

    def __setitem__(self, index: SupportsIndex, generation: int) -> None:  # type: ignore[override]
        self.writes.append(Moved(self.extent_id, int(index), generation))
        super().__setitem__(index, generation)


class ListMemory:
    """A journal's memory: each call is a write at the end of a list."""

    def __init__(self) -> None:
        self.writes: list[Write] = []

    def follow(self, cache: PrefixCache) -> None:
        """Has no use for the cache, since nothing is ever cleaned."""

    def append(self, *parts: Buffer) -> int | None:
        """Adds a record, whose place is its number in the list."""
        self.writes.append(Appended(b"".join(parts)))
        return len(self.writes) - 1

    def end_reservation(self, lease: int, reservation_id: int, place: int) -> bool:
        """Writes that a reservation ends, as its latest record says from now on."""
        written = self.writes[place]
        assert isinstance(written, Appended)
        record = decode(written.record)
        assert isinstance(record, ReserveRecord)
        ended = AbortRecord(
            leaves_tombstone=True,
            lease=lease,
            reservation_id=reservation_id,
            number=record.number + 1,
        )
        self.append(encode(ended))
        return True

    def hold(self, row: HoldRow) -> None:
        """Puts the row of a pin."""
        self.writes.append(Put(Table.HOLDS, row.key, encode_row(row)))

    def put(self, table: Table, key: Hashable, row: Row) -> None:
        """Puts a row."""
        self.writes.append(Put(table, key, encode_row(row)))

    def clear(self, table: Table, key: Hashable) -> None:
        """Removes a row."""
        self.writes.append(Cleared(table, key))

    def release(self, lease: int, pin_id: int) -> None:
        """Leaves a tombstone and removes a pin's row, in two writes."""
        key = HoldKey(lease, PIN_SCOPE, pin_id)
        self.writes += [Buried(key), Cleared(Table.HOLDS, key)]


class Remains:
    """The contents of the memory, and of the generations, after some writes."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.rows: dict[Table, dict[Hashable, Row]] = {}
        self.tombstones: list[HoldKey] = []
        self.generations: dict[int, array[int]] = {}
        self._found: Found | None = None

    def add(self, write: Write) -> None:
        """Does one more write."""
        match write:
            case Appended(record):
                self.records.append(record)
            case Put(table, key, row):
                self.rows.setdefault(table, {})[key] = decode_row(table, row)
            case Cleared(table, key):
                self.rows.get(table, {}).pop(key, None)
            case Buried(key):
                self.tombstones.append(key)
            case Moved(extent_id, index, generation):
                self.generations[extent_id][index] = generation
            case Made(extent_id, slot_count):
                self.generations[extent_id] = array("Q", bytes(8 * slot_count))
            case Found():
                self._found = write

    def written(self, end: int = 0) -> JournalContents:
        """Returns it as recovery reads it, after a head start that knew all before ``end``."""
        if self._found is None:
            return JournalContents(self.records, self.rows, self.tombstones, end)
        known_count = bisect_left(self._found.places, end)
        return self._found.contents._replace(known_count=known_count)

    def moment(self) -> Moment:
        """Returns a copy of it all, without the tombstones."""
        records, rows, _, _ = self.written()
        copied = {table: dict(found) for table, found in rows.items()}
        end = len(self.records) if self._found is None else self._found.end
        return Moment(JournalContents(list(records), copied, ()), self.tables(), end)

    def tables(self) -> dict[int, "array[int]"]:
        """Returns a copy of the generations, which a recovery may move."""
        return {extent_id: table[:] for extent_id, table in self.generations.items()}
