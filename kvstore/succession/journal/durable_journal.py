"""A journal's memory that outlives the process, and the cleaner that keeps it small."""

import os
from bisect import bisect_left
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final, Self

import structlog

from kvstore.core.cache import PrefixCache
from kvstore.core.journal.memory import Buffer
from kvstore.core.journal.packing import pack, unpack
from kvstore.core.journal.records import (
    ABORT_FORM,
    ABORTED,
    COPIED,
    INSERTED,
    PAGES_FORM,
    LeaseEndedRecord,
    decode,
)
from kvstore.core.journal.rows import (
    PIN_SCOPE,
    RESERVATION_SCOPE,
    HoldKey,
    HoldRow,
    LeaseRow,
    NamespaceRow,
    Row,
    Table,
    decode_row,
    encode_row,
)
from kvstore.core.recovery.written import JournalContents
from kvstore.core.values.tokens import TOKEN_BYTES
from kvstore.ring import (
    JournalDamaged,
    NeverCreated,
    OtherVersion,
    RecordRing,
    RecordTooLarge,
    RingRecord,
    WrongMemory,
)
from kvstore.succession.journal.ended_leases import LEASE_ENDED, EndedLeases
from kvstore.succession.journal.hold_table import HoldTable
from kvstore.succession.journal.journal_ahead import JournalAhead, payloads_of
from kvstore.succession.journal.journal_layout import MakeMemory, find_memories, make_memories
from kvstore.succession.journal.live_records import (
    LiveRecords,
    Payload,
    end_of_reservation,
    split_pages,
)
from kvstore.succession.journal.ring_rows import ROW, RingRows
from kvstore.succession.journal.store_row import (
    JOURNAL_VERSION,
    STORE_KEY,
    StoreRow,
    row_name,
    table_and_key,
)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

_IDENTITY_BYTES: Final = 16
# Above the first share of the ring, cleaning is worth its time if half of what it reads is dead:
# the next server reads all that is left. Above the second one it is worth it anyway, since an
# append cleans above seven eighths.
WORTH_CLEANING: Final = 0.25
NEARLY_FULL: Final = 0.75
# The records of ended leases take at most one of so many parts of the ring.
_ENDED_SHARE: Final = 16
_ADVICE: Final = "Set a larger --journal-bytes. The cache goes on, but the next start is empty."


class DurableJournal:
    """A :class:`~kvstore.core.journal.memory.JournalMemory` that a later process opens.

    Holds are rows of a table, and so are their tombstones. All other rows, and the core's records,
    are records of a ring, in which a cleaner keeps what is live.

    ``append``, ``put``, ``clear`` and ``release`` raise nothing. If the memory is too small or
    damaged, the journal gives up: ``given_up`` says why, its memory cannot be opened any more, and
    it takes no further write. The cache goes on, and the next start is a clean one. Under the mutex
    of the cache.
    """

    def __init__(self, holds: HoldTable) -> None:
        """Use ``create`` or ``open``."""
        self.given_up: str | None = None
        self.store = StoreRow(0, 0, b"", b"")
        self._ring: RecordRing
        self._ended: EndedLeases
        self._holds = holds
        self._rows = RingRows()
        # Holds that are rows of the ring, since they do not fit into the table.
        self._large_holds: set[Hashable] = set()
        self._records = LiveRecords()
        self._written = self._records.written
        self._cache: PrefixCache | None = None
        # The records that a start found, and the ends of the ring that has no others.
        self._found: list[Payload] = []
        self._found_at = -1, -1
        # The first of them that a head start knew.
        self._known_count = 0
        # The tombstones of holds that a start found, which hold until this process writes.
        self._found_tombstones: Collection[HoldKey] | None = None
        # The extents of the cache changed since their generations were looked up.
        self._extents_changed = True

    @classmethod
    def create(cls, make: MakeMemory, size_bytes: int, store: StoreRow) -> Self:
        """Returns an empty journal of a store, in new memory of at most ``size_bytes`` in all.

        ``make`` makes each memory, whose name begins with "journal-". Raises what it raises, and
        ValueError if the size is too small. ``open`` refuses a journal whose creation was cut off.
        """
        identity = os.urandom(_IDENTITY_BYTES)
        holds, segments = make_memories(make, size_bytes)
        made = cls(HoldTable.create(holds, identity))
        made._use(RecordRing.create(segments, identity, made._still_live, made._still_ended))
        made.replace_store(store)
        if made.given_up is not None:
            raise ValueError(f"{size_bytes} bytes are too few for a journal: {made.given_up}")
        return made

    @classmethod
    def open(cls, memories: Mapping[str, memoryview], ahead: JournalAhead | None = None) -> Self:
        """Returns the journal that an earlier process left. Writes nothing.

        ``memories`` are all whose names begin with "journal-". ``ahead`` read them before the
        process ended, so ``contents`` says what was known then. Raises
        :class:`~kvstore.ring.JournalUnusable`.
        """
        memory, segments = find_memories(memories)
        holds = HoldTable.open(memory, None if ahead is None else ahead.beside)
        opened = cls(holds)
        opened._found_tombstones = holds.found_tombstones
        found: list[RingRecord] = []
        callbacks = opened._still_live, found.append, opened._still_ended
        known = {} if ahead is None else ahead.records
        opened._use(RecordRing.open(segments, *callbacks, known))
        records = opened._found = _payloads(found)
        if ahead is not None:
            before = bisect_left(found, ahead.end, key=itemgetter(0))
            opened._known_count = len(_payloads(found[:before]))
        opened._found_at = opened._ring.tail, opened._ring.head
        if holds.identity != opened._ring.identity:
            raise WrongMemory("the holds and the ring are of two journals")
        try:
            opened._restore(records)
        except (KeyError, TypeError, ValueError) as error:
            raise JournalDamaged(f"the journal's rows cannot be read: {error}") from error
        return opened

    @property
    def used_bytes(self) -> int:
        """The bytes of the ring's records, live and dead."""
        return self._ring.used_bytes

    @property
    def end(self) -> int:
        """The place in the ring of the next record. Places only grow."""
        return self._ring.head

    @property
    def capacity_bytes(self) -> int:
        """The most that ``used_bytes`` is. Live records SHOULD take at most half of it."""
        return self._ring.capacity_bytes

    def contents(self) -> JournalContents:
        """Returns all that is written, for a recovery. It MUST be read before the next write."""
        payloads = self._payloads()
        rows: dict[Table, dict[object, Row]] = {table: {} for table in Table}
        for hold in self._holds.rows():
            rows[Table.HOLDS][hold.key] = hold
        # A hold that is there and here was about to leave the table.
        for name, data in self._rows.rows(payloads):
            if name != STORE_KEY:
                table, key = table_and_key(name)
                rows[table][key] = decode_row(table, data)
        records = [each for each in payloads if each[0] < ROW]
        known_count = sum(each[0] < ROW for each in payloads[: self._known_count])
        # A hold under an id of which a tombstone is still there came later.
        holds = rows[Table.HOLDS]
        buried = self._found_tombstones
        if buried is None:
            buried = list(self._holds.tombstones())
        tombstones = [key for key in buried if key not in holds]
        return JournalContents(records, rows, tombstones, known_count)

    def follow(self, cache: PrefixCache) -> None:
        """Drops from now on what a cache does not need. Until then the cleaner keeps all."""
        self._cache = cache
        self._extents_changed = True
        self._found = []
        self._found_at = -1, -1
        self._found_tombstones, self._holds.found_tombstones = None, ()
        self._known_count = 0

    def append(self, *parts: Buffer) -> int | None:
        """Adds a record, given in parts, after all others. Returns its place in the ring."""
        if self.given_up is not None:
            return None
        try:
            place = self._ring.append(*parts)
            self._written.append(parts[0])
            if parts[0][0] == LEASE_ENDED:
                self._ended.note(b"".join(parts))
        except RecordTooLarge as error:
            self._append_in_parts(b"".join(parts), error)
        except Exception as error:  # noqa: BLE001 - a verb goes on without a journal
            self._give_up(error)
        else:
            return place
        return None

    def end_reservation(self, lease: int, reservation_id: int, place: int) -> bool:
        """Ends a reservation, whose latest record is at a place, and leaves a tombstone of its id.

        Returns False, and changes nothing, if the cleaner moved the record.
        """
        if self.given_up is not None:
            return True
        if not self._ring.end(place):
            return False
        self._written.append((lease, reservation_id))
        return True

    def hold(self, row: HoldRow) -> None:
        """Puts the row of a pin or a source pin in place of the one of its key."""
        if self.given_up is not None:
            return
        try:
            if self._large_holds or not self._holds.put(row):
                self._put_large(row)
        except Exception as error:  # noqa: BLE001 - as for ``append``
            self._give_up(error)

    def put(self, table: Table, key: Hashable, row: Row) -> None:
        """Puts a row of any other table in place of the one of its key, if there is one."""
        if self.given_up is not None:
            return
        try:
            self._rows.put(self._ring.append, row_name(table, key), encode_row(row))
            self._note(row)
        except Exception as error:  # noqa: BLE001 - as for ``append``
            self._give_up(error)

    def clear(self, table: Table, key: Hashable) -> None:
        """Removes the row of a key. An unknown key has none."""
        if self.given_up is not None:
            return
        try:
            if not isinstance(key, HoldKey):
                self._rows.clear(self._ring.append, row_name(table, key))
                self._extents_changed = True
                return
            self._holds.clear(key)
            if key in self._large_holds:
                self._clear_large(key)
        except Exception as error:  # noqa: BLE001 - as for ``append``
            self._give_up(error)

    def release(self, lease: int, pin_id: int) -> None:
        """Leaves a tombstone of a pin's id, and removes its row. May forget the oldest one."""
        if self.given_up is not None:
            return
        key = lease, PIN_SCOPE, pin_id
        try:
            self._holds.bury(key)
            if self._large_holds and key in self._large_holds:
                self._clear_large(key)
        except Exception as error:  # noqa: BLE001 - as for ``append``
            self._give_up(error)

    def replace_store(self, row: StoreRow) -> None:
        """Writes another row of the store in place of the one before. Raises nothing."""
        if self.given_up is not None:
            return
        try:
            self._rows.put(self._ring.append, STORE_KEY, pack((JOURNAL_VERSION, *row)))
            self.store = row
        except Exception as error:  # noqa: BLE001 - as for ``append``
            self._give_up(error)

    def clean(self, records: int = 16, above: float = WORTH_CLEANING) -> bool:
        """Cleans a few of the oldest records, if the ring is fuller than ``above``.

        Returns True if more is worth cleaning. Raises nothing.
        """
        self._records.catch_up()
        capacity, tail = self.capacity_bytes, self._ring.tail
        if self.given_up is not None or self.used_bytes <= above * capacity:
            return False
        try:
            freed = self._ring.clean(records)
        except Exception as error:  # noqa: BLE001 - as for ``append``
            self._give_up(error)
            return False
        was_dead = 2 * freed >= self._ring.tail - tail
        nearly_full = freed > 0 and self.used_bytes > NEARLY_FULL * capacity
        return (was_dead or nearly_full) and self.used_bytes > above * capacity

    def clean_before(self, end: int, records: int = 64) -> bool:
        """Cleans a few of the oldest records, if they are before the place ``end``.

        Returns True if there are more before it. Raises nothing.
        """
        if self.given_up is None and self._ring.tail < end:
            self.clean(records, above=0)
        return self.given_up is None and self._ring.tail < end

    def _put_large(self, row: HoldRow) -> None:
        """Puts a row of a hold into the ring if it is there, or does not fit into the table."""
        key = row.key
        if key in self._large_holds or not self._holds.put(row):
            self._rows.put(self._ring.append, row_name(Table.HOLDS, key), encode_row(row))
            self._large_holds.add(key)
            self._holds.clear(key)

    def _clear_large(self, key: Hashable) -> None:
        """Removes the row of a hold from the ring."""
        self._rows.clear(self._ring.append, row_name(Table.HOLDS, key))
        self._large_holds.remove(key)

    def _append_in_parts(self, record: bytes, error: RecordTooLarge) -> None:
        """Appends the parts of a record that is too large. Only one of pages has parts."""
        pieces: list[bytes] = []
        if record[0] in (INSERTED, COPIED):
            width = self._records.page_widths[PAGES_FORM.unpack_from(record)[4]]
            pieces = list(split_pages(record, width, self._ring.largest_bytes))
        if not pieces:
            self._give_up(error)
        for piece in pieces:
            self.append(piece)

    def _give_up(self, error: Exception) -> None:
        self.given_up = f"{type(error).__name__}: {error}"
        self._ring.give_up(self.given_up)
        log.error("journal_given_up", why=self.given_up, advice=_ADVICE)

    def _note(self, row: Row) -> None:
        """Remembers what the cleaner has to know of a row."""
        if isinstance(row, NamespaceRow):
            self._records.page_widths[row.number] = row.layout.page_tokens * TOKEN_BYTES
        self._extents_changed = True

    def _still_live(self, record: memoryview) -> Payload | None:
        """Returns what the cleaner has to keep of a record, or None."""
        if self._written:
            self._records.catch_up()
        if self._extents_changed and self._cache is not None:
            self._records.tables = {
                extent_id: extent.generations
                for arena in self._cache.arenas.values()
                for extent_id, extent in arena.extents.items()
            }
            self._extents_changed = False
        kind = record[0]
        if kind >= ROW:
            return record if self._rows.is_live(record) else None
        if kind == ABORTED and self._cache is not None:
            self._bury(record)
        if kind == LEASE_ENDED and self._cache is not None:
            data = bytes(record)
            is_known = _is_tombstone(self._cache, data)
            return record if self._ended.keeps(data, is_known=is_known) else None
        return self._records.still_live(record)

    def _still_ended(self, record: memoryview) -> Payload | None:
        """Returns what the cleaner has to keep of the last record of a reservation that ended."""
        if self._cache is None:
            return record
        self._bury(end_of_reservation(record))
        return None

    def _bury(self, record: Payload) -> None:
        """Leaves a tombstone in place of a record of the end of a reservation."""
        _, leaves_tombstone, lease, reservation_id, _ = ABORT_FORM.unpack(record)
        if leaves_tombstone:
            self._holds.bury((lease, RESERVATION_SCOPE, reservation_id))

    def _use(self, ring: RecordRing) -> None:
        self._ring = ring
        self._ended = EndedLeases(ring.capacity_bytes // _ENDED_SHARE)

    def _payloads(self) -> Sequence[Payload]:
        """Returns all records of the ring, which a start has read already."""
        if self._found_at == (self._ring.tail, self._ring.head):
            return self._found
        return _payloads(self._ring.records())

    def _restore(self, records: Sequence[Payload]) -> None:
        """Remembers what an earlier process wrote."""
        rows = [each for each in records if each[0] >= ROW]
        self._rows.restore(rows)
        if STORE_KEY not in self._rows:
            raise NeverCreated("the journal has no store")
        leases = set[int]()
        for name, data in self._rows.rows(rows):
            if name == STORE_KEY:
                version, *fields = unpack(data)
                if version != JOURNAL_VERSION:
                    raise OtherVersion(f"the journal has version {version}, not {JOURNAL_VERSION}")
                self.store = StoreRow(*fields)
            elif name[0] == Table.HOLDS:
                self._large_holds.add(table_and_key(name)[1])
            else:
                row = decode_row(table_and_key(name)[0], data)
                self._note(row)
                if isinstance(row, LeaseRow):
                    leases.add(row.number)
        self._records.restore(records, leases)
        self._ended.note_all(records)


def _payloads(records: Iterable[RingRecord]) -> list[Payload]:
    """Returns the payloads of records, and behind an ended reservation one of its end."""
    return [payload for record in records for payload in payloads_of(record)]


def _is_tombstone(cache: PrefixCache, data: bytes) -> bool:
    """Returns True if a cache still knows that the lease of a record ended, or ends it just now."""
    record = decode(data)
    assert isinstance(record, LeaseEndedRecord)  # the caller knows
    tenant = cache.table.tenants.get(record.tenant)
    is_known = tenant is not None and record.lease_id in tenant.lease_tombstones
    return is_known or record in cache.table.leases
