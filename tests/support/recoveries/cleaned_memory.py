"""A journal in so little real memory that it is cleaned all the time, opened after each write."""

from array import array
from collections.abc import Callable, Hashable, Mapping

from kvstore.core.cache import PrefixCache
from kvstore.core.journal.memory import Buffer
from kvstore.core.journal.rows import HoldRow, Row, Table
from kvstore.core.recovery.recover import recover
from kvstore.core.recovery.written import JournalContents
from kvstore.succession.journal.durable_journal import DurableJournal
from kvstore.succession.journal.journal_ahead import payloads_of
from kvstore.succession.journal.ring_rows import ROW
from kvstore.succession.journal.store_row import StoreRow
from recoveries.list_memory import Found, ListMemory

SIZE_BYTES = 256 << 10
# Records to clean at each write.
SLICE = 3
STORE = StoreRow(7, 1, b"key", b"settings")


class CleanedMemory(ListMemory):
    """A journal's memory whose every write is followed by some cleaning.

    Each write in the list is what the next process would find then.
    """

    def __init__(self) -> None:
        super().__init__()
        self._memories: dict[str, memoryview] = {}
        self.journal = DurableJournal.create(self._make, SIZE_BYTES, STORE)

    def follow(self, cache: PrefixCache) -> None:
        """Lets the cache decide what is live."""
        self.journal.follow(cache)

    def append(self, *parts: Buffer) -> int | None:
        """Adds a record."""
        place = self.journal.append(*parts)
        self._note()
        return place

    def end_reservation(self, lease: int, reservation_id: int, place: int) -> bool:
        """Ends a reservation."""
        is_there = self.journal.end_reservation(lease, reservation_id, place)
        self._note()
        return is_there

    def hold(self, row: HoldRow) -> None:
        """Puts the row of a pin."""
        self.journal.hold(row)
        self._note()

    def put(self, table: Table, key: Hashable, row: Row) -> None:
        """Puts a row."""
        self.journal.put(table, key, row)
        self._note()

    def clear(self, table: Table, key: Hashable) -> None:
        """Removes a row."""
        self.journal.clear(table, key)
        self._note()

    def release(self, lease: int, pin_id: int) -> None:
        """Leaves a tombstone and removes a pin's row."""
        self.journal.release(lease, pin_id)
        self._note()

    def successor(
        self, tables: Mapping[int, "array[int]"], make: Callable[[], PrefixCache], now: float
    ) -> PrefixCache:
        """Returns the cache of a second recovery, after a first process went on and cleaned all."""
        copies = {name: memoryview(bytearray(each)) for name, each in self._memories.items()}
        first = DurableJournal.open(copies)
        recovered = recover(first.contents(), tables, make, now)
        recovered.go_on(first)
        first.follow(recovered.cache)
        for _ in range(2):
            first.clean(1 << 20, above=0)
        assert first.given_up is None
        return recover(DurableJournal.open(copies).contents(), tables, make, now).cache

    def _make(self, name: str, size_bytes: int) -> memoryview:
        self._memories[name] = memoryview(bytearray(size_bytes))
        return self._memories[name]

    def _note(self) -> None:
        """Cleans, and remembers what an opened journal has."""
        self.journal.clean(SLICE, above=0)
        assert self.journal.given_up is None
        opened = _read(DurableJournal.open(self._memories).contents())
        assert opened == _read(self.journal.contents()), "a start finds something else"
        ring = self.journal._ring
        places = [
            each[0] for each in ring.records() for payload in payloads_of(each) if payload[0] < ROW
        ]
        self.writes.append(Found(opened, places, ring.head))


def _read(contents: JournalContents) -> JournalContents:
    records, rows, tombstones, _ = contents
    copied = {table: dict(found) for table, found in rows.items()}
    return JournalContents([bytes(each) for each in records], copied, sorted(tombstones))
