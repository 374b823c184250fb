"""The holds of leases as rows of 64 bytes, and their tombstones."""

from collections import deque
from collections.abc import Collection, Hashable, Iterator
from itertools import filterfalse
from typing import Final, Self

from xxhash import xxh64_intdigest

from kvstore.core.journal.rows import HoldKey, HoldRow
from kvstore.ring.errors import JournalDamaged
from kvstore.ring.header import HEADER_BYTES, WORD_MASK, MemoryHeader, commit
from kvstore.succession.journal.hold_rows import (
    BODY_AT,
    FIRST_WORD,
    FORM,
    HAS_SOURCE,
    HAS_TIERS,
    HAS_TOKEN,
    ROW_BITS,
    ROW_BYTES,
    TIER_BITS,
    HoldKeys,
    HoldsBeside,
    body_of,
    checked_header,
    header_of,
    hold_of,
    key_of,
    read_rows,
    start_of,
    sum_of,
    word_of,
)

_MOST_RUNS: Final = 2
_pack = FORM.pack


class HoldTable:
    """Rows of holds, each of which is live, a tombstone or free, in memory that outlives a process.

    A row is a state word, then 56 bytes of fields. The word is zero for a free row. For a live one
    it is an odd number that has the sum of the row, and for a tombstone the complement of that. It
    is written last, so a hold is there whole or not at all, and one store ends it.

    A row has no pages of KV cache groups, and at most two runs of tiers. A live row does not
    change. Rows that ended longest ago are used first, so a tombstone stays for a while.

    Each verb writes a row, so this has few steps. Under a mutex of the owner. ``found_tombstones``
    are those that ``open`` found.
    """

    def __init__(self, memory: memoryview, header: MemoryHeader) -> None:
        """Use ``create`` or ``open``."""
        self.identity = header.identity
        self._memory = memory
        self._readable = memory.toreadonly()
        self._words = memory.cast("Q")
        self._salt = header.salt
        self._row_count = header.sizes[2]
        self._row_of: dict[Hashable, int] = {}
        # Rows that are not live, in the order in which they are used again.
        self._free: deque[int] = deque()
        self.found_tombstones: Collection[HoldKey] = ()

    @classmethod
    def create(cls, memory: memoryview, identity: bytes) -> Self:
        """Returns a table without holds over a writable memory, whatever bytes it has.

        ``identity`` is 16 random bytes. The header is committed last.
        """
        header = header_of(memory, identity)
        header.write(memory)
        made = cls(memory, header)
        for row in range(made._row_count):
            made._words[word_of(row)] = 0
            made._free.append(row)
        commit(memory)
        return made

    @classmethod
    def open(cls, memory: memoryview, beside: HoldsBeside | None = None) -> Self:
        """Returns the table that an earlier process left in a memory. Writes nothing.

        Rows with the bytes that ``beside`` copied are not read again. Raises :class:`NeverCreated`,
        :class:`OtherVersion`, :class:`WrongMemory` if it is another structure or size, and
        :class:`JournalDamaged` if a row is not whole.
        """
        opened = cls(memory, checked_header(memory))
        known, changed = HoldKeys({}, {}, []), set[int]()
        if beside is None or beside.identity != opened.identity:
            found = read_rows(memory, opened._salt, range(opened._row_count))
        else:
            known, changed = beside.keys, beside.changed(memory)
            found = read_rows(memory, opened._salt, changed)
        if found.torn:
            raise JournalDamaged(f"the hold in row {found.torn[0]} is damaged")
        opened._take(known, found.keys, changed)
        return opened

    def _take(self, known: HoldKeys, found: HoldKeys, changed: set[int]) -> None:
        """Begins with the known rows that have not changed, and with those that were found."""
        for row, key in known.live.items():
            if row not in changed:
                self._row_of[key] = row
        self._row_of.update((key, row) for row, key in found.live.items())
        tombstones = {
            row: key for row, key in known.tombstones.items() if row not in changed
        } | found.tombstones
        self._free.extend(filterfalse(changed.__contains__, known.free))
        self._free.extend(found.free)
        self._free.extend(tombstones)
        self.found_tombstones = tombstones.values()

    def put(self, row: HoldRow) -> bool:
        """Writes a hold. Returns False, and changes nothing, if it does not fit or is there."""
        lease, kind, hold_id, namespace, page_id, tiers, token, source, valid, groups, pages = row
        key = lease, kind, hold_id
        if groups or pages or not self._free or key in self._row_of:
            return False
        flags = first = second = 0
        if token is not None:
            flags = HAS_TOKEN
        if source is not None:
            flags |= HAS_SOURCE
        if tiers is not None:
            if len(tiers) > _MOST_RUNS:
                return False
            flags |= HAS_TIERS
            runs = [end << TIER_BITS | tier for end, tier in tiers]
            first, second = (*runs, 0, 0)[:_MOST_RUNS]
        body = _pack(
            kind,
            flags,
            valid,
            lease,
            namespace,
            hold_id,
            page_id,
            token or 0,
            source or 0,
            first,
            second,
        )
        number = self._free.popleft()
        start = HEADER_BYTES + (number << ROW_BITS)
        word = start >> 3
        # A tombstone ends before its fields change.
        self._words[word] = 0
        self._memory[start + 8 : start + 64] = body
        self._words[word] = xxh64_intdigest(body, self._salt + start) | 1
        self._row_of[key] = number
        return True

    def clear(self, key: Hashable) -> bool:
        """Ends a hold without a tombstone. Returns False if it is not here."""
        number = self._row_of.pop(key, None)
        if number is None:
            return False
        self._words[start_of(number) >> 3] = 0
        self._free.append(number)
        return True

    def bury(self, key: tuple[int, int, int]) -> None:
        """Ends a hold and leaves a tombstone, also of an unknown one. Needs a row for that.

        ``key`` has the fields of a ``HoldKey``, whose constructor costs a frame.
        """
        number = self._row_of.pop(key, None)
        if number is not None:
            self._words[FIRST_WORD + (number << 3)] ^= WORD_MASK
            self._free.append(number)
        elif self._free:
            lease, kind, hold_id = key
            number = self._free.popleft()
            start = start_of(number)
            body = _pack(kind, 0, 0, lease, 0, hold_id, 0, 0, 0, 0, 0)
            self._words[start >> 3] = 0
            self._memory[start + BODY_AT : start + ROW_BYTES] = body
            self._words[start >> 3] = sum_of(body, self._salt, number) ^ WORD_MASK
            self._free.append(number)

    def rows(self) -> Iterator[HoldRow]:
        """Yields all holds. The table must not be changed before the last one was read."""
        return (hold_of(body_of(self._readable, row)) for row in self._row_of.values())

    def tombstones(self) -> Iterator[HoldKey]:
        """Yields the keys of the last holds that left a tombstone. As for ``rows``."""
        for row in self._free:
            if self._words[word_of(row)]:
                yield key_of(body_of(self._readable, row))
