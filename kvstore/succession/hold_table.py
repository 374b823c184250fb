"""The holds of leases as rows of 64 bytes, and their tombstones."""

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from itertools import chain, compress, filterfalse
from operator import ne, not_
from struct import Struct
from typing import Final, NamedTuple, Self

from xxhash import xxh3_64_intdigest

from kvstore.core.journal.rows import HoldKey, HoldRow
from kvstore.ring.errors import JournalDamaged
from kvstore.ring.header import (
    HEADER_BYTES,
    WORD_MASK,
    MemoryHeader,
    commit,
    format_digest,
    read_header,
)

KIND: Final = "holds"
# Kind, flags, valid tokens, lease, namespace, hold, page, next token, source, two runs of tiers.
_FORM: Final = Struct("<BBxxIIIQQQQII")
# The kind, the lease and the hold of a row.
_KEY: Final = Struct("<B7xI4xQ")
_ROW_BYTES: Final = 64
_ROW_BITS: Final = 6
_BODY_AT: Final = 8
_FIRST_WORD: Final = HEADER_BYTES >> 3
# The bit of a state that only a live row has.
_LIVE: Final = 1
_HAS_TOKEN, _HAS_SOURCE, _HAS_TIERS = 1, 2, 4
_MOST_RUNS: Final = 2
# A run is its end and its tier, which is 1 or 2.
_TIER_BITS: Final = 2
_TIER_MASK: Final = (1 << _TIER_BITS) - 1
_pack = _FORM.pack
# A named tuple's constructor costs a Python frame.
_new_tuple = tuple.__new__


class HoldTable:
    """Rows of holds, each of which is live, a tombstone or free, in memory that outlives a process.

    A row is a state word, then 56 bytes of fields. The word is zero for a free row. For a live one
    it is an odd number that has the sum of the row, and for a tombstone the complement of that. It
    is written last, so a hold is there whole or not at all, and one store ends it.

    A row has no pages of KV cache groups, and at most two runs of tiers. A live row does not
    change. Rows that ended longest ago are used first, so a tombstone stays for a while.

    Each verb writes a row, so this has few steps. Under a mutex of the owner.
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

    @classmethod
    def create(cls, memory: memoryview, identity: bytes) -> Self:
        """Returns a table without holds over a writable memory, whatever bytes it has.

        ``identity`` is 16 random bytes. The header is committed last.
        """
        header = _header(memory, identity)
        header.write(memory)
        made = cls(memory, header)
        for row in range(made._row_count):
            made._words[_start(row) >> 3] = 0
            made._free.append(row)
        commit(memory)
        return made

    @classmethod
    def open(cls, memory: memoryview, known: Sequence[int] = ()) -> Self:
        """Returns the table that an earlier process left in a memory. Writes nothing.

        ``known`` are the states of all rows as ``read_beside`` found them: of tombstones only
        those with others are compared with their sums. Raises :class:`NeverCreated`,
        :class:`OtherVersion`, :class:`WrongMemory` if it is another structure or size, and
        :class:`JournalDamaged` if a row is not whole.
        """
        header = read_header(memory)
        expected = _header(memory, header.identity)
        header.check(expected.kind, expected.sizes)
        opened = cls(memory, header)
        # In steps over all rows that Python takes at once: most of them are tombstones.
        states = opened._states()
        rows = range(len(states))
        lives = list(compress(rows, map(_LIVE.__and__, states)))
        changed = compress(rows, map(ne, states, known or bytes(len(states))))
        # The bytes of a hold are used, so a stray write since the first reading must be found.
        for row in chain(lives, changed):
            if states[row] and not opened._is_whole(row, states[row]):
                raise JournalDamaged(f"the hold in row {row} is damaged")
        for row in lives:
            opened._row_of[_hold(opened._body(row)).key] = row
        opened._free.extend(compress(rows, map(not_, states)))
        live = set(opened._row_of.values())
        opened._free.extend(filterfalse(live.__contains__, compress(rows, states)))
        return opened

    def put(self, row: HoldRow) -> bool:
        """Writes a hold. Returns False, and changes nothing, if it does not fit or is there."""
        lease, kind, hold_id, namespace, page_id, tiers, token, source, valid, groups, pages = row
        key = lease, kind, hold_id
        if groups or pages or not self._free or key in self._row_of:
            return False
        flags = first = second = 0
        if token is not None:
            flags = _HAS_TOKEN
        if source is not None:
            flags |= _HAS_SOURCE
        if tiers is not None:
            if len(tiers) > _MOST_RUNS:
                return False
            flags |= _HAS_TIERS
            runs = [end << _TIER_BITS | tier for end, tier in tiers]
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
        start = HEADER_BYTES + (number << _ROW_BITS)
        word = start >> 3
        # A tombstone ends before its fields change.
        self._words[word] = 0
        self._memory[start + 8 : start + 64] = body
        self._words[word] = xxh3_64_intdigest(body, self._salt + start) | 1
        self._row_of[key] = number
        return True

    def clear(self, key: Hashable) -> bool:
        """Ends a hold without a tombstone. Returns False if it is not here."""
        number = self._row_of.pop(key, None)
        if number is None:
            return False
        self._words[_start(number) >> 3] = 0
        self._free.append(number)
        return True

    def bury(self, key: tuple[int, int, int]) -> None:
        """Ends a hold and leaves a tombstone, also of an unknown one. Needs a row for that.

        ``key`` has the fields of a ``HoldKey``, whose constructor costs a frame.
        """
        number = self._row_of.pop(key, None)
        if number is not None:
            self._words[_FIRST_WORD + (number << 3)] ^= WORD_MASK
            self._free.append(number)
        elif self._free:
            lease, kind, hold_id = key
            number = self._free.popleft()
            start = _start(number)
            body = _pack(kind, 0, 0, lease, 0, hold_id, 0, 0, 0, 0, 0)
            self._words[start >> 3] = 0
            self._memory[start + _BODY_AT : start + _ROW_BYTES] = body
            self._words[start >> 3] = self._sum(body, start) ^ WORD_MASK
            self._free.append(number)

    def rows(self) -> Iterator[HoldRow]:
        """Yields all holds. The table must not be changed before the last one was read."""
        return map(_hold, map(self._body, self._row_of.values()))

    def tombstones(self) -> Iterator[HoldKey]:
        """Yields the keys of the last holds that left a tombstone. As for ``rows``."""
        states, readable = self._states(), self._readable
        for number in compress(self._free, map(states.__getitem__, self._free)):
            kind, lease, hold_id = _KEY.unpack_from(readable, _start(number) + _BODY_AT)
            yield _new_tuple(HoldKey, (lease, kind, hold_id))

    def _is_whole(self, number: int, state: int) -> bool:
        """Returns whether a row that is not free has the sum that its state says."""
        digest = self._sum(self._body(number), _start(number))
        return (state if state & _LIVE else state ^ WORD_MASK) == digest

    def _states(self) -> list[int]:
        """Returns the state words of all rows."""
        first, end = _start(0), _start(self._row_count)
        return self._words[first >> 3 : end >> 3 : _ROW_BYTES >> 3].tolist()

    def _body(self, number: int) -> memoryview:
        start = _start(number)
        return self._readable[start + _BODY_AT : start + _ROW_BYTES]

    def _sum(self, body: bytes | memoryview, start: int) -> int:
        """Returns the state of a live row."""
        return xxh3_64_intdigest(body, self._salt + start) | _LIVE


class HoldsBeside(NamedTuple):
    """The holds of a table that another process writes, and the states of all rows.

    The state of a row that changed just then is zero.
    """

    rows: list[HoldRow]
    states: list[int]


def read_beside(memory: memoryview) -> HoldsBeside:
    """Returns what is in a table that another process still writes.

    Leaves out rows that change just then. Raises as ``HoldTable.open`` does for wrong memory.
    """
    header = read_header(memory)
    expected = _header(memory, header.identity)
    header.check(expected.kind, expected.sizes)
    readable = memory.toreadonly()
    words = memory.cast("Q")[_FIRST_WORD :: _ROW_BYTES >> 3].tolist()[: header.sizes[2]]
    found = HoldsBeside([], [0] * len(words))
    for row, state in enumerate(words):
        if state:
            start = _start(row)
            # A copy, which the writer cannot change between its sum and its use.
            body = bytes(readable[start + _BODY_AT : start + _ROW_BYTES])
            digest = xxh3_64_intdigest(body, header.salt + start) | _LIVE
            if (state if state & _LIVE else state ^ WORD_MASK) == digest:
                found.states[row] = state
                if state & _LIVE:
                    found.rows.append(_hold(body))
    return found


def _start(number: int) -> int:
    return HEADER_BYTES + number * _ROW_BYTES


def _header(memory: memoryview, identity: bytes) -> MemoryHeader:
    """Returns the header of a table that fills a memory."""
    row_count = (memory.nbytes - HEADER_BYTES) // _ROW_BYTES
    return MemoryHeader(
        KIND, identity, (memory.nbytes, _ROW_BYTES, row_count, format_digest(_FORM))
    )


def _hold(body: memoryview | bytes) -> HoldRow:
    kind, flags, valid, lease, namespace, hold_id, page_id, token, source, *runs = _FORM.unpack(
        body
    )
    tiers = tuple((run >> _TIER_BITS, run & _TIER_MASK) for run in runs if run)
    return HoldRow(
        *(lease, kind, hold_id, namespace, page_id),
        tiers if flags & _HAS_TIERS else None,
        token if flags & _HAS_TOKEN else None,
        source if flags & _HAS_SOURCE else None,
        valid,
    )
