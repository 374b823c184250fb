"""The memories of a journal: their names, their sizes, and the structure in each."""

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Final, NamedTuple, Self, TypeAlias

from kvstore.journal import NeverCreated, RowTable, TombstoneRing
from kvstore.succession.hold_rows import FORM as HOLD_FORM
from kvstore.succession.hold_rows import NAME as HOLD_NAME

# Returns a mapped, writable memory of zeros of a name and a size in bytes.
MakeMemory: TypeAlias = Callable[[str, int], memoryview]

PREFIX: Final = "journal-"
_HOLDS, _TOMBSTONES, _SEGMENT = f"{PREFIX}holds", f"{PREFIX}tombstones", f"{PREFIX}ring-"
# Larger rings have several segments, and so less padding.
MOST_SEGMENT_BYTES: Final = 64 << 20
SMALLEST_JOURNAL_BYTES: Final = 16 << 10
# The share of all bytes that each table has, and the most that it has: 131,070 holds of 64 bytes,
# or 349,516 tombstones of 24.
_TABLE_SHARE: Final = 16
_MOST_TABLE_BYTES: Final = 8 << 20
# Sizes are whole lines of a processor's cache.
_LINE: Final = 64
# Lease, kind and id of a hold.
_TOMBSTONE: Final = Struct("<IIQ")


class JournalTables(NamedTuple):
    """The structures of a journal beside its ring."""

    holds: RowTable
    tombstones: TombstoneRing

    @classmethod
    def create(cls, make: MakeMemory, size_bytes: int, identity: bytes) -> Self:
        """Returns empty tables of a journal of ``size_bytes`` in all, in new memory."""
        table_bytes = _table_bytes(size_bytes)
        holds = RowTable.create(make(_HOLDS, table_bytes), identity, HOLD_NAME, HOLD_FORM)
        tombstones = TombstoneRing.create(make(_TOMBSTONES, table_bytes), identity, _TOMBSTONE)
        return cls(holds, tombstones)

    @classmethod
    def open(cls, memories: Mapping[str, memoryview]) -> Self:
        """Returns the tables that an earlier process left. Raises ``JournalUnusable``."""
        missing = {_HOLDS, _TOMBSTONES, f"{_SEGMENT}0"} - memories.keys()
        if missing:
            raise NeverCreated(f"the journal has no {', '.join(sorted(missing))}")
        holds = RowTable.open(memories[_HOLDS], HOLD_NAME, HOLD_FORM)
        return cls(holds, TombstoneRing.open(memories[_TOMBSTONES], _TOMBSTONE))


def make_segments(make: MakeMemory, size_bytes: int) -> list[memoryview]:
    """Returns new memory for the ring of a journal of ``size_bytes`` in all."""
    left = size_bytes - 2 * _table_bytes(size_bytes)
    count = -(-left // MOST_SEGMENT_BYTES)
    return [make(f"{_SEGMENT}{each}", _whole_lines(left // count)) for each in range(count)]


def find_segments(memories: Mapping[str, memoryview]) -> list[memoryview]:
    """Returns the memory of the ring that an earlier process left, in its order."""
    count = sum(name.startswith(_SEGMENT) for name in memories)
    names = [f"{_SEGMENT}{each}" for each in range(count)]
    if not memories.keys() >= set(names):
        raise NeverCreated("a segment of the journal's ring is missing")
    return [memories[name] for name in names]


def _table_bytes(size_bytes: int) -> int:
    if size_bytes < SMALLEST_JOURNAL_BYTES:
        raise ValueError(f"a journal has at least {SMALLEST_JOURNAL_BYTES} bytes, not {size_bytes}")
    return min(_whole_lines(size_bytes // _TABLE_SHARE), _MOST_TABLE_BYTES)


def _whole_lines(size_bytes: int) -> int:
    return size_bytes // _LINE * _LINE
