"""The journal of a store that is still at work, read by the server that is to replace it."""

from collections.abc import Mapping, Sequence
from time import sleep
from typing import Final

from kvstore.core.journal.packing import unpack
from kvstore.core.journal.rows import HoldRow, Row, Table, decode_row
from kvstore.core.recovery.written import JournalContents
from kvstore.ring import (
    JournalDamaged,
    JournalUnusable,
    OtherVersion,
    ReadRecord,
    RingFollower,
    RingRecord,
)
from kvstore.succession.journal.hold_rows import HoldsBeside
from kvstore.succession.journal.journal_layout import find_memories
from kvstore.succession.journal.live_records import Payload, end_of_reservation
from kvstore.succession.journal.ring_rows import ROW, RingRows
from kvstore.succession.journal.store_row import JOURNAL_VERSION, STORE_KEY, StoreRow, table_and_key

# Seconds between two looks how far the writer has cleaned, and looks that find the same.
LOOK_SECONDS: Final = 0.01
QUIET_LOOKS: Final = 10


class JournalAhead:
    """A journal's records, as far as they were read beside their writer. Writes nothing.

    ``end`` is the place up to which ``contents`` read, and ``beside`` has the rows of holds then.
    Not thread-safe.
    """

    def __init__(self, memories: Mapping[str, memoryview]) -> None:
        """``memories`` are all whose names begin with "journal-".

        Raises :class:`~kvstore.ring.JournalUnusable`.
        """
        self._holds, segments = find_memories(memories)
        self._ring = RingFollower(segments)
        self.end = 0
        self.beside: HoldsBeside | None = None

    @property
    def records(self) -> Mapping[int, ReadRecord]:
        """The records by their places."""
        return self._ring.records

    def wait_cleaned(self, seconds: float) -> None:
        """Waits until the writer has stopped to clean, for ``seconds`` at most.

        It cleans up to a place that is not known here, and writes meanwhile. So it has stopped if
        nothing was cleaned for ``QUIET_LOOKS``.
        """
        tail, quiet = -1, 0
        for _ in range(round(seconds / LOOK_SECONDS)):
            now = self._ring.tail
            quiet = quiet + 1 if now == tail else 0
            if quiet == QUIET_LOOKS:
                break
            tail = now
            sleep(LOOK_SECONDS)

    def follow(self) -> None:
        """Reads what was written since."""
        self._ring.follow()

    def contents(self) -> tuple[StoreRow, JournalContents]:
        """Returns the store and all that is written by now, as a head start reads it.

        Raises :class:`~kvstore.ring.JournalUnusable` if the store is not there, or if a row cannot
        be read.
        """
        self.follow()
        found: list[Payload] = []
        for place, (payload, _, end, is_ended, _) in self.records.items():
            self.end = end
            if payload is not None:
                found += payloads_of((place, payload, is_ended))
        try:
            store, rows = _rows(found)
        except (KeyError, TypeError, ValueError) as error:
            raise JournalDamaged(f"the journal's rows cannot be read: {error}") from error
        # After the records: whoever kept a page that they remove had a hold by then.
        self.beside = beside = HoldsBeside(self._holds)
        holds: dict[object, HoldRow] = {hold.key: hold for hold in beside.rows}
        rows[Table.HOLDS] = {**holds, **rows[Table.HOLDS]}
        records = [each for each in found if each[0] < ROW]
        return store, JournalContents(records, rows, ())


def _rows(found: Sequence[Payload]) -> tuple[StoreRow, dict[Table, dict[object, Row]]]:
    """Returns the store, and the rows of the ring by table and key."""
    written = RingRows()
    written.restore(found)
    rows: dict[Table, dict[object, Row]] = {table: {} for table in Table}
    store: StoreRow | None = None
    for name, data in written.rows(found):
        if name == STORE_KEY:
            version, *fields = unpack(data)
            if version != JOURNAL_VERSION:
                raise OtherVersion(f"the journal has version {version}, not {JOURNAL_VERSION}")
            store = StoreRow(*fields)
        else:
            table, key = table_and_key(name)
            rows[table][key] = decode_row(table, data)
    if store is None:
        raise JournalUnusable("the journal has no store yet")
    return store, rows


def payloads_of(record: RingRecord) -> list[Payload]:
    """Returns the payload of a record, and behind an ended reservation one of its end."""
    _, payload, is_ended = record
    return [payload, end_of_reservation(payload)] if is_ended else [payload]
