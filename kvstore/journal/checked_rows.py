"""A table of rows that change, with two copies of each, in memory that survives the process."""

import struct
from collections.abc import Iterator
from typing import Final, Self

from xxhash import xxh3_64_intdigest

from kvstore.journal.errors import JournalDamaged, TableFull
from kvstore.journal.header import (
    HEADER_BYTES,
    MemoryHeader,
    Payload,
    commit,
    in_words,
    read_header,
)

KIND: Final = "checked rows of"
_COPY_HEADER_BYTES: Final = 24
# The number and the length, which the sum is over too.
_SUMMED: Final = struct.Struct("=QQ")
# The length of a free row's copy.
_FREE: Final = (1 << 64) - 1
# The first numbers of a row's copies. Zero is no number, so cleared memory is damage.
_FIRST_NUMBERS: Final = (2, 3)


class CheckedRows:
    """Rows of up to ``body_bytes`` bytes, each free or live, and each changed as a whole.

    A row has two copies. A copy is ``u64 number | u64 sum | u64 length | body``. A change goes
    to the copy with the smaller number, and becomes the newest by the store of its number, which
    is last. So a killed process leaves the row as it was before the change, or as it is after.

    The copies' numbers differ by one. A copy that is being written still has its former number,
    so it is the older one, and is not read. Anything else was changed by a stray write, and
    raises :class:`JournalDamaged`: the older copy never stands in for a damaged newer one.

    Under a mutex of the owner. The table has as many rows as fit into the memory. For facts that
    change seldom; a change takes about 1 us.
    """

    def __init__(self, memory: memoryview, header: MemoryHeader) -> None:
        """Use ``create`` or ``open``."""
        self.identity = header.identity
        self._memory = memory
        self._readable = memory.toreadonly()
        self._words = memory.cast("Q")
        self._salt = header.salt
        _, self._body_bytes, self._row_count, _ = header.sizes
        self._copy_bytes = _copy_bytes(self._body_bytes)
        # Each row's newest number. The copy of an even number is the first one.
        self._numbers: list[int] = []
        self._free: list[int] = []
        self._live: set[int] = set()

    @classmethod
    def create(cls, memory: memoryview, identity: bytes, name: str, body_bytes: int) -> Self:
        """Returns a table without live rows over a writable memory, whatever bytes it has.

        ``identity`` is 16 random bytes. ``name`` says which table it is, in at most 16 ASCII
        characters. The header is committed last. Raises ValueError if no row fits.
        """
        header = _header(memory, identity, name, body_bytes)
        header.write(memory)
        made = cls(memory, header)
        for row in range(made._row_count):
            for number in _FIRST_NUMBERS:
                made._write(row, number, None)
            made._numbers.append(max(_FIRST_NUMBERS))
        made._free = list(reversed(range(made._row_count)))
        commit(memory)
        return made

    @classmethod
    def open(cls, memory: memoryview, name: str, body_bytes: int) -> Self:
        """Returns the table that an earlier process left in a memory. Writes nothing.

        Raises :class:`NeverCreated`, :class:`OtherVersion`, :class:`WrongMemory` if it is
        another table or size, and :class:`JournalDamaged` if a row is damaged.
        """
        header = read_header(memory)
        expected = _header(memory, header.identity, name, body_bytes)
        header.check(expected.kind, expected.sizes)
        opened = cls(memory, header)
        for row in range(opened._row_count):
            number = opened._newest(row)
            opened._numbers.append(number)
            if opened._read(row, number) is not None:
                opened._live.add(row)
        opened._free = [
            row for row in reversed(range(opened._row_count)) if row not in opened._live
        ]
        return opened

    def __len__(self) -> int:
        """Returns how many rows are live."""
        return len(self._live)

    @property
    def row_count(self) -> int:
        """The rows of the table, free ones included."""
        return self._row_count

    def add(self, body: Payload) -> int:
        """Makes a free row live with a body, and returns the row's number.

        Raises :class:`TableFull`, or ValueError for a body that is too long; both change nothing.
        """
        if not self._free:
            raise TableFull(f"all {self._row_count} rows are live")
        row = self._free[-1]
        self._change(row, body)
        self._free.pop()
        self._live.add(row)
        return row

    def replace(self, row: int, body: Payload) -> None:
        """Replaces the body of a live row. The row has the former body or this one, never a mix.

        Raises KeyError for a free row, and ValueError for a body that is too long.
        """
        if row not in self._live:
            raise KeyError(row)
        self._change(row, body)

    def remove(self, row: int) -> None:
        """Frees a live row. Raises KeyError for a free one."""
        self._live.remove(row)
        self._change(row, None)
        self._free.append(row)

    def read(self, row: int) -> bytes:
        """Returns the body of a live row. Raises KeyError, and :class:`JournalDamaged`."""
        if row not in self._live:
            raise KeyError(row)
        body = self._read(row, self._newest(row))
        if body is None:
            raise JournalDamaged(f"row {row} is damaged")
        return body

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """Yields the number and the body of each live row, by number."""
        for row in sorted(self._live):
            yield row, self.read(row)

    def _change(self, row: int, body: Payload | None) -> None:
        """Writes the next number of a row, None to free it."""
        if body is not None and len(body) > self._body_bytes:
            raise ValueError(f"a body has at most {self._body_bytes} bytes, not {len(body)}")
        self._numbers[row] += 1
        self._write(row, self._numbers[row], body)

    def _write(self, row: int, number: int, body: Payload | None) -> None:
        """Writes a copy: the sum and the body, and last its number."""
        start = self._start(row, number)
        word = start >> 3
        length = _FREE if body is None else len(body)
        self._words[word + 1] = self._sum(start, number, length, body or b"")
        self._words[word + 2] = length
        if body:
            self._memory[start + _COPY_HEADER_BYTES : start + _COPY_HEADER_BYTES + length] = body
        self._words[word] = number

    def _newest(self, row: int) -> int:
        """Returns the number of a row's newest copy. Raises :class:`JournalDamaged`."""
        first, second = (self._words[self._start(row, copy) >> 3] for copy in range(2))
        if abs(first - second) != 1:
            raise JournalDamaged(f"row {row} is damaged")
        return max(first, second)

    def _read(self, row: int, number: int) -> bytes | None:
        """Returns the body of the copy of a number, None if it says that the row is free."""
        start = self._start(row, number)
        written, digest, length = self._words[start >> 3 : (start >> 3) + 3]
        end = start + _COPY_HEADER_BYTES + (0 if length == _FREE else length)
        body = bytes(self._readable[start + _COPY_HEADER_BYTES : end])
        if written != number or digest != self._sum(start, number, length, body):
            raise JournalDamaged(f"row {row} is damaged")
        return None if length == _FREE else body

    def _start(self, row: int, number: int) -> int:
        """Returns the offset of the copy that a number of a row is written to."""
        return HEADER_BYTES + (2 * row + (number & 1)) * self._copy_bytes

    def _sum(self, start: int, number: int, length: int, body: Payload) -> int:
        summed = b"".join((_SUMMED.pack(number, length), body))
        return xxh3_64_intdigest(summed, self._salt + start)


def _copy_bytes(body_bytes: int) -> int:
    return _COPY_HEADER_BYTES + in_words(body_bytes)


def _header(memory: memoryview, identity: bytes, name: str, body_bytes: int) -> MemoryHeader:
    """Returns the header of a table that fills a memory."""
    row_count = (memory.nbytes - HEADER_BYTES) // (2 * _copy_bytes(body_bytes))
    if row_count < 1:
        raise ValueError(f"a memory of {memory.nbytes} bytes has no row of {body_bytes}")
    return MemoryHeader(f"{KIND} {name}", identity, (memory.nbytes, body_bytes, row_count, 0))
