"""The last ids that were released, in memory that survives the process."""

import struct
from collections.abc import Iterator
from typing import Any, Final, Self

from xxhash import xxh3_64_intdigest

from kvstore.journal.errors import JournalDamaged
from kvstore.journal.header import (
    HEADER_BYTES,
    MemoryHeader,
    commit,
    format_digest,
    in_words,
    read_header,
)

KIND: Final = "tombstones"
# In a cache line of its own, the number of entries ever written.
_COUNT: Final = HEADER_BYTES >> 3
_ENTRIES_AT: Final = HEADER_BYTES + 64
_SUM_BYTES: Final = 8
_FEWEST: Final = 2


class TombstoneRing:
    """The last entries of one layout, of which each new one replaces the oldest.

    An entry is the fields of ``layout``, then a sum, which is written last and commits it. A
    layout of 16 bytes makes entries of 24. The sum is seeded with the entry's number, so an
    earlier lap's entry is never read as a new one. After each entry the ring stores how many were
    ever written; at most one more is there, whose ``append`` did not return.

    Under a mutex of the owner. The ring has as many entries as fit into the memory. It remembers
    one less for sure, since a killed process may leave the oldest one overwritten in part.
    """

    def __init__(self, memory: memoryview, header: MemoryHeader, layout: struct.Struct) -> None:
        """Use ``create`` or ``open``."""
        self.identity = header.identity
        self._memory = memory
        self._readable = memory.toreadonly()
        self._words = memory.cast("Q")
        self._layout = layout
        self._salt = header.salt
        _, self._entry_bytes, self._entry_count, _ = header.sizes
        # The sum is behind the fields, at a whole word.
        self._sum_at = self._entry_bytes - _SUM_BYTES
        self._next = 0
        # Entries below this number are not remembered, although they would fit.
        self._forgotten = 0
        # The stored count leaves out the last entry, whose append did not return.
        self._is_late = False

    @classmethod
    def create(cls, memory: memoryview, identity: bytes, layout: struct.Struct) -> Self:
        """Returns an empty ring over a writable memory, whatever bytes it has.

        ``identity`` is 16 random bytes. The header is committed last. Raises ValueError if two
        entries do not fit.
        """
        header = _header(memory, identity, layout)
        header.write(memory)
        made = cls(memory, header, layout)
        made._words[_COUNT] = 0
        commit(memory)
        return made

    @classmethod
    def open(cls, memory: memoryview, layout: struct.Struct) -> Self:
        """Returns the ring that an earlier process left in a memory. Writes nothing.

        Raises :class:`NeverCreated`, :class:`OtherVersion`, :class:`WrongMemory` if it is
        another structure, layout or size, and :class:`JournalDamaged` if an entry is not whole.
        """
        header = read_header(memory)
        expected = _header(memory, header.identity, layout)
        header.check(expected.kind, expected.sizes)
        opened = cls(memory, header, layout)
        opened._recover()
        return opened

    def __len__(self) -> int:
        """Returns how many entries the ring remembers."""
        return self._next - self._first

    def append(self, *fields: object) -> None:
        """Writes an entry, which is committed when this returns.

        Raises ``struct.error`` for fields that the layout does not take, and changes nothing.
        """
        body = self._layout.pack(*fields)
        number = self._next
        if self._is_late:
            self._words[_COUNT] = number
            self._is_late = False
        start = _ENTRIES_AT + number % self._entry_count * self._entry_bytes
        self._memory[start : start + len(body)] = body
        self._words[(start + self._sum_at) >> 3] = xxh3_64_intdigest(body, self._salt + number)
        self._next = self._words[_COUNT] = number + 1

    @property
    def _first(self) -> int:
        """The number of the oldest entry that the ring remembers."""
        return max(self._next - self._entry_count, self._forgotten)

    def entries(self) -> Iterator[tuple[Any, ...]]:
        """Yields the fields of each entry, the oldest first.

        The ring must not be changed before the last one was read.
        """
        for number in range(self._first, self._next):
            start = self._start(number)
            yield self._layout.unpack(self._readable[start : start + self._layout.size])

    def _recover(self) -> None:
        """Finds the first and the last entry, and checks all between them."""
        stored = self._words[_COUNT]
        self._is_late = self._is_whole(stored)
        self._next = stored + self._is_late
        if not self._is_late and stored >= self._entry_count and not self._is_whole(self._first):
            # An append that did not return overwrote a part of the oldest one.
            self._forgotten = self._first + 1
        whole = all(self._is_whole(number) for number in range(self._first, self._next))
        if not whole or self._is_whole(self._next):
            raise JournalDamaged(f"the tombstones up to {stored} are damaged")

    def _is_whole(self, number: int) -> bool:
        start = self._start(number)
        body = self._readable[start : start + self._layout.size]
        digest = self._words[(start + self._sum_at) >> 3]
        return digest == xxh3_64_intdigest(body, self._salt + number)

    def _start(self, number: int) -> int:
        """Returns the offset of an entry."""
        return _ENTRIES_AT + number % self._entry_count * self._entry_bytes


def _header(memory: memoryview, identity: bytes, layout: struct.Struct) -> MemoryHeader:
    """Returns the header of a ring that fills a memory."""
    entry_bytes = in_words(layout.size) + _SUM_BYTES
    entry_count = (memory.nbytes - _ENTRIES_AT) // entry_bytes
    if entry_count < _FEWEST:
        raise ValueError(f"a memory of {memory.nbytes} bytes has no two entries of {entry_bytes}")
    return MemoryHeader(
        KIND, identity, (memory.nbytes, entry_bytes, entry_count, format_digest(layout))
    )
