"""The memories of a journal: their names, their sizes, and what is in each."""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from kvstore.ring import NeverCreated

# Returns a mapped, writable memory of zeros of a name and a size in bytes.
MakeMemory: TypeAlias = Callable[[str, int], memoryview]

HOLDS: Final = "journal-holds"
_SEGMENT: Final = "journal-ring-"
# Larger rings have several segments, and so less padding.
MOST_SEGMENT_BYTES: Final = 64 << 20
SMALLEST_JOURNAL_BYTES: Final = 16 << 10
# The share of all bytes that holds have, and the most that they have: 131,070 of 64 bytes.
_HOLDS_SHARE: Final = 16
_MOST_HOLDS_BYTES: Final = 8 << 20
# Sizes are whole lines of a processor's cache.
_LINE: Final = 64


def make_memories(make: MakeMemory, size_bytes: int) -> tuple[memoryview, list[memoryview]]:
    """Returns new memory for the holds and for the ring of a journal of ``size_bytes`` in all.

    Raises ValueError if that is too little.
    """
    if size_bytes < SMALLEST_JOURNAL_BYTES:
        raise ValueError(f"a journal has at least {SMALLEST_JOURNAL_BYTES} bytes, not {size_bytes}")
    holds_bytes = min(_whole_lines(size_bytes // _HOLDS_SHARE), _MOST_HOLDS_BYTES)
    left = size_bytes - holds_bytes
    count = -(-left // MOST_SEGMENT_BYTES)
    segment_bytes = _whole_lines(left // count)
    segments = [make(f"{_SEGMENT}{each}", segment_bytes) for each in range(count)]
    return make(HOLDS, holds_bytes), segments


def find_memories(memories: Mapping[str, memoryview]) -> tuple[memoryview, list[memoryview]]:
    """Returns the memory of the holds and of the ring that an earlier process left.

    Raises :class:`NeverCreated` if one is missing.
    """
    count = max(sum(name.startswith(_SEGMENT) for name in memories), 1)
    names = [f"{_SEGMENT}{each}" for each in range(count)]
    missing = {HOLDS, *names} - memories.keys()
    if missing:
        raise NeverCreated(f"the journal has no {', '.join(sorted(missing))}")
    return memories[HOLDS], [memories[name] for name in names]


def _whole_lines(size_bytes: int) -> int:
    return size_bytes // _LINE * _LINE
