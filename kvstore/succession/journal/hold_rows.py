"""The rows of a table of holds as a process reads them that did not write them."""

from collections.abc import Iterable, Sequence
from itertools import compress
from operator import not_
from struct import Struct
from typing import Final, NamedTuple

from xxhash import xxh64_intdigest

from kvstore.core.journal.rows import HoldKey, HoldRow
from kvstore.ring.header import (
    HEADER_BYTES,
    WORD_MASK,
    MemoryHeader,
    format_digest,
    read_header,
)

KIND: Final = "holds"
# Kind, flags, valid tokens, lease, namespace, hold, page, next token, source, two runs of tiers.
FORM: Final = Struct("<BBxxIIIQQQQII")
# The kind, the lease and the hold of a row.
_KEY: Final = Struct("<B7xI4xQ")
ROW_BYTES: Final = 64
ROW_BITS: Final = 6
BODY_AT: Final = 8
FIRST_WORD: Final = HEADER_BYTES >> 3
_ROW_WORDS: Final = ROW_BYTES >> 3
# The bit of a state that only a live row has.
LIVE: Final = 1
HAS_TOKEN, HAS_SOURCE, HAS_TIERS = 1, 2, 4
# A run is its end and its tier, which is 1 or 2.
TIER_BITS: Final = 2
_TIER_MASK: Final = (1 << TIER_BITS) - 1
# Rows that are compared by one step.
_STEP: Final = 64
# A named tuple's constructor costs a Python frame.
_new_tuple = tuple.__new__


class HoldKeys(NamedTuple):
    """The keys of holds and of tombstones by row, and the free rows."""

    live: dict[int, HoldKey]
    tombstones: dict[int, HoldKey]
    free: list[int]


class HoldsBeside:
    """The rows of a table that another process still writes, as they were when they were read.

    ``identity`` is the table's. ``rows`` are its holds. A row that changed just then is left out,
    and so is its key. A hold that moved just then is there once, twice or not at all.
    """

    def __init__(self, memory: memoryview) -> None:
        """Raises as ``HoldTable.open`` does for wrong memory."""
        header = checked_header(memory)
        self.identity = header.identity
        self._row_count = header.sizes[2]
        # A copy, which the writer cannot change between a row's sum and its use.
        self._copy = memoryview(bytes(memory))
        self.keys, self._torn = read_rows(self._copy, header.salt, range(self._row_count))
        self.rows: list[HoldRow] = [hold_of(body_of(self._copy, row)) for row in self.keys.live]

    def changed(self, memory: memoryview) -> set[int]:
        """Returns the rows whose bytes are not those of the copy any more, or were not whole."""
        before, now = self._copy.cast("Q"), memory.cast("Q")
        found = set(self._torn)
        for first in range(0, self._row_count, _STEP):
            rows = range(first, min(first + _STEP, self._row_count))
            start, end = word_of(rows[0]), word_of(rows[-1] + 1)
            if before[start:end] != now[start:end]:
                words = zip(before[start:end].tolist(), now[start:end].tolist(), strict=True)
                found.update(first + at // _ROW_WORDS for at, (a, b) in enumerate(words) if a != b)
        return found


class FoundRows(NamedTuple):
    """The keys of rows, and the rows that are not whole."""

    keys: HoldKeys
    torn: list[int]


def read_rows(memory: memoryview, salt: int, rows: Sequence[int] | set[int]) -> FoundRows:
    """Returns the keys of some rows. A table's rows are read all or by number."""
    found = FoundRows(HoldKeys({}, {}, []), [])
    live, tombstones, free = found.keys
    words, readable = memory.cast("Q"), memory.toreadonly()
    taken: Iterable[int] = rows
    if isinstance(rows, range):
        # In steps over all rows that Python takes at once: most of them are free.
        states = words[word_of(rows.start) : word_of(rows.stop) : _ROW_WORDS].tolist()
        free.extend(compress(rows, map(not_, states)))
        taken = compress(rows, states)
    for row in taken:
        state = words[word_of(row)]
        if not state:
            free.append(row)
            continue
        body = body_of(readable, row)
        digest = sum_of(body, salt, row)
        if state == digest:
            live[row] = key_of(body)
        elif state ^ WORD_MASK == digest:
            tombstones[row] = key_of(body)
        else:
            found.torn.append(row)
    return found


def checked_header(memory: memoryview) -> MemoryHeader:
    """Returns the header of a table; raises for wrong memory as ``HoldTable.open`` does."""
    header = read_header(memory)
    expected = header_of(memory, header.identity)
    header.check(expected.kind, expected.sizes)
    return header


def header_of(memory: memoryview, identity: bytes) -> MemoryHeader:
    """Returns the header of a table that fills a memory."""
    row_count = (memory.nbytes - HEADER_BYTES) // ROW_BYTES
    return MemoryHeader(KIND, identity, (memory.nbytes, ROW_BYTES, row_count, format_digest(FORM)))


def start_of(row: int) -> int:
    """Returns the byte at which a row begins."""
    return HEADER_BYTES + (row << ROW_BITS)


def word_of(row: int) -> int:
    """Returns the number of a row's first word, which is its state."""
    return FIRST_WORD + row * _ROW_WORDS


def body_of(memory: memoryview, row: int) -> memoryview:
    """Returns the fields of a row."""
    start = start_of(row)
    return memory[start + BODY_AT : start + ROW_BYTES]


def sum_of(body: bytes | memoryview, salt: int, row: int) -> int:
    """Returns the state of a live row."""
    return xxh64_intdigest(body, salt + start_of(row)) | LIVE


def key_of(body: memoryview) -> HoldKey:
    """Returns the key of a row that is not free."""
    kind, lease, hold_id = _KEY.unpack_from(body)
    return _new_tuple(HoldKey, (lease, kind, hold_id))


def hold_of(body: memoryview) -> HoldRow:
    """Returns the hold of a live row."""
    kind, flags, valid, lease, namespace, hold_id, page_id, token, source, *runs = FORM.unpack(body)
    tiers = tuple((run >> TIER_BITS, run & _TIER_MASK) for run in runs if run)
    return HoldRow(
        *(lease, kind, hold_id, namespace, page_id),
        tiers if flags & HAS_TIERS else None,
        token if flags & HAS_TOKEN else None,
        source if flags & HAS_SOURCE else None,
        valid,
    )
