"""The contents of a journal, sorted: the rows by table, and the records by namespace."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

from kvstore.core.journal.journal import LEASE_NUMBERS, PAGE_IDS
from kvstore.core.journal.records import (
    COPIED,
    INSERTED,
    PAGES_FORM,
    RESERVE_FORM,
    RESERVED,
    AbortRecord,
    DetachRecord,
    EndRecord,
    LeaseEndedRecord,
    PagesRecord,
    ReserveRecord,
    decode,
)
from kvstore.core.journal.rows import (
    RESERVATION_SCOPE,
    CounterRow,
    ExtentRow,
    HoldKey,
    HoldRow,
    LeaseRow,
    MappingRow,
    NamedPinRow,
    NamespaceRow,
    ProcessRow,
    RemovalRow,
    Row,
    Table,
)
from kvstore.core.recovery.pages import LiveCopies
from kvstore.core.values.slots import Generations

RowT = TypeVar("RowT", bound=Row)
# The bytes of a record.
Data: TypeAlias = bytes | memoryview


class JournalContents(NamedTuple):
    """The contents of a journal's memory: records in order, rows by table and key, tombstones.

    Records may be views of that memory. The first ``known_count`` of them were in the contents
    that a head start was made from.
    """

    records: Iterable[bytes | memoryview]
    rows: Mapping[Table, Mapping[object, Row]]
    tombstones: Iterable[HoldKey]
    known_count: int = 0


class NamespaceRecords:
    """The records of one namespace."""

    def __init__(self) -> None:
        self.pages: list[PagesRecord] = []
        self.detached: list[DetachRecord] = []
        self.ends: list[EndRecord] = []


class Sorted:
    """A journal's contents, as recovery asks for them.

    Records of pages are left out if none of their copies is there and nothing follows from them,
    and those that are known from a head start. ``inserts`` are the inserts of reservations that
    have not ended. ``ended`` are the leases whose ids left tombstones. ``next_id`` and
    ``next_number`` are more than any that was given out. ``numbers`` are those of all records of
    reservations, also of those that a later one replaced. ``missing_numbers`` are named by inserts,
    and no record has them. ``live`` knows the tables of all extents that have a row.
    """

    def __init__(self, written: JournalContents, generations: Mapping[int, Generations]) -> None:
        self._rows = written.rows
        extents = (each.extent_id for each in self.extents)
        self.live = LiveCopies({each: generations[each] for each in extents if each in generations})
        self.tombstones = list(written.tombstones)
        # The number of each reservation's latest record, and its bytes: most of them ended.
        self._reserved: dict[tuple[int, int], tuple[int, Data]] = {}
        self.inserts: dict[tuple[int, int], list[PagesRecord]] = defaultdict(list)
        self.of_namespace: dict[int, NamespaceRecords] = defaultdict(NamespaceRecords)
        self.ended: list[LeaseEndedRecord] = []
        self.next_id = self._counter(PAGE_IDS) + 1
        self.next_number = 1
        self.numbers: set[int] = set()
        self.missing_numbers: set[int] = set()
        self._aborted_at: dict[tuple[int, int], int] = {}
        pages: list[tuple[Data, bool]] = []
        for place, data in enumerate(written.records):
            kind = data[0]
            if kind == RESERVED:
                self._add_reservation(data)
                continue
            if kind in (INSERTED, COPIED):
                pages.append((data, place < written.known_count))
                continue
            record = decode(data)
            if isinstance(record, AbortRecord):
                self._add_abort(record)
            elif isinstance(record, DetachRecord):
                self.of_namespace[record.namespace].detached.append(record)
            elif isinstance(record, EndRecord):
                self.of_namespace[record.namespace].ends.append(record)
            else:
                assert isinstance(record, LeaseEndedRecord)  # there is no other kind
                self.ended.append(record)
        for data, is_known in pages:
            self._add_pages(data, is_known=is_known)

    @property
    def lease_numbers(self) -> int:
        """The number of leases that were ever granted."""
        return self._counter(LEASE_NUMBERS)

    @property
    def extents(self) -> list[ExtentRow]:
        """The extents, by number."""
        return self._sorted(Table.EXTENTS, ExtentRow)

    @property
    def namespaces(self) -> list[NamespaceRow]:
        """The namespaces, by number."""
        return self._sorted(Table.NAMESPACES, NamespaceRow)

    @property
    def leases(self) -> list[LeaseRow]:
        """The leases, by number."""
        return self._sorted(Table.LEASES, LeaseRow)

    @property
    def processes(self) -> list[ProcessRow]:
        """The processes, by number."""
        return self._sorted(Table.PROCESSES, ProcessRow)

    @property
    def mappings(self) -> list[MappingRow]:
        """The mappings, by the number of their process."""
        return self._sorted(Table.MAPPINGS, MappingRow)

    @property
    def named_pins(self) -> list[NamedPinRow]:
        """The named pins, by number."""
        return self._sorted(Table.NAMED_PINS, NamedPinRow)

    @property
    def removals(self) -> list[RemovalRow]:
        """The removals for tier 3, by number."""
        return self._sorted(Table.REMOVALS, RemovalRow)

    @property
    def holds(self) -> list[HoldRow]:
        """The pins and source pins of leases that have not ended, none of them released."""
        leases = {each.number for each in self.leases}
        released = set(self.tombstones)
        return [
            each
            for each in self._of(Table.HOLDS, HoldRow)
            if each.lease in leases and each.key not in released
        ]

    @property
    def reservations(self) -> list[ReserveRecord]:
        """The latest records of the reservations of leases that have not ended, none aborted."""
        leases = {each.number for each in self.leases}
        records = [
            decode(data)
            for key, (_, data) in self._reserved.items()
            if key[0] in leases and self._is_open(key)
        ]
        return [each for each in records if isinstance(each, ReserveRecord)]

    @property
    def hold_keys(self) -> set[HoldKey]:
        """The keys of all rows of holds."""
        return {each.key for each in self._of(Table.HOLDS, HoldRow)}

    def _add_reservation(self, data: Data) -> None:
        number, _, *ids = RESERVE_FORM.unpack_from(data)[4:8]
        key = (ids[0], ids[1])
        known = self._reserved.get(key)
        if known is None or known[0] < number:
            self._reserved[key] = (number, data)
        self.numbers.add(number)
        self.next_number = max(self.next_number, number + 1)

    def _is_open(self, key: tuple[int, int]) -> bool:
        """Returns True if a reservation was made and not aborted since."""
        return key in self._reserved and self._reserved[key][0] >= self._aborted_at.get(key, 0)

    def _add_abort(self, record: AbortRecord) -> None:
        key = (record.lease, record.reservation_id)
        self._aborted_at[key] = max(self._aborted_at.get(key, 0), record.number)
        if record.leaves_tombstone:
            self.tombstones.append(HoldKey(record.lease, RESERVATION_SCOPE, record.reservation_id))
        self.next_number = max(self.next_number, record.number)

    def _add_pages(self, data: Data, *, is_known: bool) -> None:
        """Adds the record of pages, unless the call that wrote it did not get to its end."""
        head = PAGES_FORM.unpack_from(data)
        kind, count, namespace, lease, base_id, supersedes_id, reservation_id, needed = (
            *(head[0], head[3], head[4], head[5], head[6], head[8], head[9], head[13]),
        )
        self.next_id = max(self.next_id, base_id + count)
        if needed:
            self.next_number = max(self.next_number, needed + 1)
            if needed not in self.numbers:
                self.missing_numbers.add(needed)
                return
        key = (lease, reservation_id)
        is_complete = kind == INSERTED and not needed
        is_of_open = bool(lease) and is_complete and self._is_open(key)
        is_there = not is_known and (bool(supersedes_id) or self.live.has_any(data))
        if not (is_of_open or is_there):
            return
        record = decode(data)
        assert isinstance(record, PagesRecord)  # by its kind
        if not is_known:
            self.of_namespace[namespace].pages.append(record)
        if is_of_open:
            self.inserts[key].append(record)

    def _counter(self, name: str) -> int:
        row = self._rows.get(Table.COUNTERS, {}).get(name)
        return row.value if isinstance(row, CounterRow) else 0

    def _of(self, table: Table, form: type[RowT]) -> list[RowT]:
        rows = self._rows.get(table, {}).values()
        return [each for each in rows if isinstance(each, form)]

    def _sorted(self, table: Table, form: type[RowT]) -> list[RowT]:
        return sorted(self._of(table, form), key=lambda row: row[0])
