"""A table of rows that are written once and removed, in memory that survives the process."""

import struct
from collections.abc import Iterator
from typing import Any, Final, Self

from xxhash import xxh3_64_intdigest

from kvstore.journal.errors import JournalDamaged, TableFull
from kvstore.journal.header import (
    HEADER_BYTES,
    MemoryHeader,
    Payload,
    commit,
    format_digest,
    in_words,
    read_header,
)

KIND: Final = "rows of"
_STATE_BYTES: Final = 8


class RowTable:
    """Rows of one layout, each of which is free or live.

    A row is a state word, then the fields of ``layout``. The word is zero for a free row, and
    else the sum of the row. It is written last, so a row is added whole or not at all. A layout
    of 56 bytes makes rows of 64. A live row does not change: an owner adds another, then removes
    the first.

    Under a mutex of the owner. The table has as many rows as fit into the memory.
    """

    def __init__(self, memory: memoryview, header: MemoryHeader, layout: struct.Struct) -> None:
        """Use ``create`` or ``open``."""
        self.identity = header.identity
        self._memory = memory
        self._readable = memory.toreadonly()
        self._words = memory.cast("Q")
        self._layout = layout
        self._salt = header.salt
        _, self._row_bytes, self._row_count, _ = header.sizes
        self._free: list[int] = []

    @classmethod
    def create(cls, memory: memoryview, identity: bytes, name: str, layout: struct.Struct) -> Self:
        """Returns a table without live rows over a writable memory, whatever bytes it has.

        ``identity`` is 16 random bytes. ``name`` says which table it is, in at most 20 ASCII
        characters. The header is committed last. Raises ValueError if no row fits.
        """
        header = _header(memory, identity, name, layout)
        header.write(memory)
        made = cls(memory, header, layout)
        for row in reversed(range(made._row_count)):
            made._words[made._start(row) >> 3] = 0
            made._free.append(row)
        commit(memory)
        return made

    @classmethod
    def open(cls, memory: memoryview, name: str, layout: struct.Struct) -> Self:
        """Returns the table that an earlier process left in a memory. Writes nothing.

        Raises :class:`NeverCreated`, :class:`OtherVersion`, :class:`WrongMemory` if it is
        another table, layout or size, and :class:`JournalDamaged` if a live row is not whole.
        """
        header = read_header(memory)
        expected = _header(memory, header.identity, name, layout)
        header.check(expected.kind, expected.sizes)
        opened = cls(memory, header, layout)
        for row in reversed(range(opened._row_count)):
            start = opened._start(row)
            state = opened._words[start >> 3]
            if not state:
                opened._free.append(row)
            elif state != opened._sum(opened._readable[opened._body(row)], start):
                raise JournalDamaged(f"row {row} of {name!r} is damaged")
        return opened

    def __len__(self) -> int:
        """Returns how many rows are live."""
        return self._row_count - len(self._free)

    @property
    def row_count(self) -> int:
        """The rows of the table, free ones included."""
        return self._row_count

    def add(self, *fields: object) -> int:
        """Writes the fields into a free row, and returns the row's number.

        The row is live when this returns. Raises :class:`TableFull`, or ``struct.error`` for
        fields that the layout does not take; both change nothing.
        """
        body = self._layout.pack(*fields)
        if not self._free:
            raise TableFull(f"all {self._row_count} rows are live")
        row = self._free.pop()
        start = HEADER_BYTES + row * self._row_bytes
        self._memory[start + 8 : start + 8 + len(body)] = body
        self._words[start >> 3] = xxh3_64_intdigest(body, self._salt + start) | 1
        return row

    def remove(self, row: int) -> None:
        """Frees a live row. Raises KeyError for a free one."""
        word = self._start(row) >> 3
        if not self._words[word]:
            raise KeyError(row)
        self._words[word] = 0
        self._free.append(row)

    def rows(self) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Yields the number and the fields of each live row, by number.

        The table must not be changed before the last one was read.
        """
        for row in range(self._row_count):
            if self._words[self._start(row) >> 3]:
                yield row, self._layout.unpack(self._readable[self._body(row)])

    def _start(self, row: int) -> int:
        """Returns the offset of a row's state word. Raises IndexError if there is no such row."""
        if not 0 <= row < self._row_count:
            raise IndexError(f"the table has {self._row_count} rows, and none is {row}")
        return HEADER_BYTES + row * self._row_bytes

    def _body(self, row: int) -> slice:
        start = HEADER_BYTES + row * self._row_bytes + _STATE_BYTES
        return slice(start, start + self._layout.size)

    def _sum(self, body: Payload, start: int) -> int:
        """Returns the sum of a row, which is never zero."""
        return xxh3_64_intdigest(body, self._salt + start) | 1


def _header(memory: memoryview, identity: bytes, name: str, layout: struct.Struct) -> MemoryHeader:
    """Returns the header of a table that fills a memory."""
    row_bytes = in_words(_STATE_BYTES + layout.size)
    row_count = (memory.nbytes - HEADER_BYTES) // row_bytes
    if row_count < 1:
        raise ValueError(f"a memory of {memory.nbytes} bytes has no row of {row_bytes}")
    return MemoryHeader(
        f"{KIND} {name}", identity, (memory.nbytes, row_bytes, row_count, format_digest(layout))
    )
