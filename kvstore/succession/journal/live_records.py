"""The records of a journal that a recovery still needs, told from those that it does not."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import eq
from typing import Final, TypeAlias

from kvstore.core.journal.memory import Buffer
from kvstore.core.journal.records import (
    ABORT_FORM,
    ABORTED,
    COPIED,
    DETACH_FORM,
    INSERTED,
    NO_PAGE,
    PAGES_FORM,
    RESERVE_FORM,
    RESERVED,
    PagesRecord,
    RecordKind,
    decode,
    encode,
)
from kvstore.core.values.slots import Generations

# Python 3.11 takes 0.2 us to look a member up in its enumeration.
_DETACH: Final = int(RecordKind.DETACH)
_ENTRY: Final = 8
# A record, in a ring's memory or copied from there.
Payload: TypeAlias = bytes | memoryview
# A lease's number, and the id of a reservation.
ReservationKey: TypeAlias = tuple[int, int]


class LiveRecords:
    """Decides what a journal's cleaner keeps of each record. Not thread-safe.

    A record is kept for as long as a recovery could come to something else without it:

    - pages while a copy that the record names is there. An insert of a reservation that has not
      ended is kept as it is, since it says how far the reservation got;
    - a reservation until it ends, or has a record with a larger number;
    - a removal while a copy of its page is there: then a hold keeps the page, or one below;
    - the end of a reservation never, since all records of the reservation left the ring before;
    - a next token never. A turn over the ring forgets it, and its pages stay.

    ``reservations`` has the number of the latest record of each reservation that has not ended.
    ``page_widths`` has the bytes of a page's tokens, by namespace. ``tables`` has the generations
    by extent, or is None before they are known: until then everything is kept. ``written`` are the
    beginnings of the records since ``catch_up``, and the keys of reservations that ended.
    """

    def __init__(self) -> None:
        self.tables: Mapping[int, Generations] | None = None
        self.reservations: dict[ReservationKey, int] = {}
        self.written: list[Buffer | ReservationKey] = []
        self.page_widths: dict[int, int] = {}
        # The largest number of a reservation's record, written or only named by an insert.
        self._last_number = 0
        # Numbers that inserts name, and that no record has: the process ended before.
        self._void: set[int] = set()

    def catch_up(self) -> None:
        """Remembers what ``written`` has, which verbs have no time for."""
        for head in self.written:
            if isinstance(head, tuple):
                self.reservations.pop(head, None)
            elif head[0] == RESERVED:
                number, _, lease, reservation_id = RESERVE_FORM.unpack_from(head)[4:8]
                self.reservations[lease, reservation_id] = self._last_number = number
            elif head[0] == ABORTED:
                _, _, lease, reservation_id, _ = ABORT_FORM.unpack_from(head)
                self.reservations.pop((lease, reservation_id), None)
        self.written.clear()

    def restore(self, records: Iterable[Payload], leases: Collection[int]) -> None:
        """Remembers an earlier process's records. Its ``leases`` have not ended."""
        written, named = set[int](), set[int]()
        latest, aborted = dict[ReservationKey, int](), dict[ReservationKey, int]()
        for record in records:
            if record[0] == RESERVED:
                number, _, lease, reservation_id = RESERVE_FORM.unpack_from(record)[4:8]
                key = lease, reservation_id
                latest[key] = max(number, latest.get(key, 0))
                written.add(number)
            elif record[0] == ABORTED:
                _, _, lease, reservation_id, number = ABORT_FORM.unpack_from(record)
                key = lease, reservation_id
                aborted[key] = max(number, aborted.get(key, 0))
            elif record[0] == INSERTED:
                named.add(PAGES_FORM.unpack_from(record)[-1])
        self.reservations = {
            key: number
            for key, number in latest.items()
            if key[0] in leases and number >= aborted.get(key, 0)
        }
        self._last_number = max(written | named, default=0)
        self._void = named - written - {0}

    def still_live(self, record: memoryview) -> Payload | None:
        """Returns what is to be kept of a record: all of it, a smaller one, or None."""
        kind = record[0]
        if self.tables is None:
            return record
        if kind in (INSERTED, COPIED):
            return self._live_pages(record)
        if kind == RESERVED:
            number, _, lease, reservation_id = RESERVE_FORM.unpack_from(record)[4:8]
            is_latest = self.reservations.get((lease, reservation_id)) == number
            return record if is_latest else None
        if kind == _DETACH:
            count = DETACH_FORM.unpack_from(record)[1]
            is_there = True in self._are_there(record, DETACH_FORM.size, count, self.tables)
            return record if is_there else None
        return None

    def _live_pages(self, record: memoryview) -> Payload | None:
        """Returns a record of those pages that are there.

        It is of no reservation if that ended, or if a later record has what the insert did.
        """
        assert self.tables is not None  # the caller knows
        head = PAGES_FORM.unpack_from(record)
        kind, count, namespace, lease, reservation_id, needed = (
            *(head[0], head[3], head[4], head[5], head[9], head[13]),
        )
        if needed > self._last_number:
            # The call that wrote it is not over.
            return record
        if needed in self._void:
            return None
        if kind == INSERTED and not needed and (lease, reservation_id) in self.reservations:
            return record
        there = self._are_there(record, PAGES_FORM.size, count, self.tables)
        if True not in there:
            return None
        first, end = there.index(True), count - there[::-1].index(True)
        if end - first == count and not lease:
            return record
        width = self.page_widths.get(namespace)
        return record if width is None else part_of_pages(record, first, end, width)

    def _are_there(
        self, record: memoryview, start: int, count: int, tables: Mapping[int, Generations]
    ) -> list[bool]:
        """Returns of each copy that a record names, from byte ``start`` on, if it is there."""
        middle, end = start + _ENTRY * count, start + 2 * _ENTRY * count
        # A slot is an index and an extent, of four bytes each.
        halves = record[start:middle].cast("I").tolist()
        indexes, extents = halves[0::2], halves[1::2]
        written = record[middle:end].cast("Q").tolist()
        if count and extents.count(extents[0]) == count:
            table = tables.get(extents[0])
            if table is None:
                return [False] * count
            return list(map(eq, written, map(table.__getitem__, indexes)))
        places = zip(extents, indexes, written, strict=True)
        return [each in tables and tables[each][k] == generation for each, k, generation in places]


def end_of_reservation(record: Payload) -> bytes:
    """Returns the record of the end of a reservation, whose latest record is ``record``."""
    number, _, lease, reservation_id = RESERVE_FORM.unpack_from(record)[4:8]
    return ABORT_FORM.pack(ABORTED, 1, lease, reservation_id, number + 1)


def part_of_pages(record: memoryview, first: int, end: int, page_width: int) -> bytes:
    """Returns a record of the pages from ``first`` to ``end`` of another, and of no reservation.

    A page takes ``page_width`` bytes of tokens, except for a partial one at the end.
    """
    kind, tier, flags, count, namespace, _, base_id, parent_id, supersedes_id, *_ = (
        PAGES_FORM.unpack_from(record)
    )
    numbers = (namespace, 0, base_id + first, parent_id, supersedes_id)
    if first:
        numbers = (namespace, 0, base_id + first, base_id + first - 1, NO_PAGE)
    head = PAGES_FORM.pack(kind, tier, flags, end - first, *numbers, 0, 0, 0, 0, 0)
    tokens_at = PAGES_FORM.size + _ENTRY * count * (3 if flags else 2)
    columns = range(PAGES_FORM.size, tokens_at, _ENTRY * count)
    parts = [record[at + _ENTRY * first : at + _ENTRY * end] for at in columns]
    tokens_end = len(record) if end == count else tokens_at + end * page_width
    return b"".join((head, *parts, record[tokens_at + first * page_width : tokens_end]))


def split_pages(record: bytes, page_width: int, most_bytes: int) -> Iterator[bytes]:
    """Yields a record of pages in parts, each of which is a record of its kind.

    None has more than ``most_bytes``. Yields nothing if no page fits.
    """
    whole = decode(record)
    assert isinstance(whole, PagesRecord)  # the caller knows
    columns = 3 if whole.checksums else 2
    count = (most_bytes - PAGES_FORM.size) // (page_width + _ENTRY * columns)
    for start in range(0, len(whole.slots), count) if count > 0 else ():
        end = start + count
        part = whole._replace(
            slots=whole.slots[start:end],
            generations=whole.generations[start:end],
            checksums=whole.checksums[start:end],
            tokens=whole.tokens[start * page_width : end * page_width],
            tail_token_count=whole.tail_token_count if end >= len(whole.slots) else 0,
        )
        if start:
            first_id = whole.base_id + start
            part = part._replace(
                base_id=first_id,
                parent_id=first_id - 1,
                supersedes_id=NO_PAGE,
                offset=whole.offset + whole.duplicate_count + start,
                duplicate_count=0,
            )
        yield encode(part)
