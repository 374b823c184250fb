"""The header in front of each piece of the journal's memory."""

import struct
from collections.abc import Callable

import pytest

from kvstore.journal import (
    CheckedRows,
    JournalDamaged,
    NeverCreated,
    OtherVersion,
    RecordRing,
    RowTable,
    TombstoneRing,
    WrongMemory,
)

PAIR = struct.Struct("=QQ")
IDENTITY = b"sixteen random b"

CREATE: dict[str, Callable[[memoryview], object]] = {
    "ring": lambda memory: RecordRing.create([memory], IDENTITY, bytes),
    "rows": lambda memory: RowTable.create(memory, IDENTITY, "holds", PAIR),
    "checked": lambda memory: CheckedRows.create(memory, IDENTITY, "leases", 100),
    "tombstones": lambda memory: TombstoneRing.create(memory, IDENTITY, PAIR),
}
OPEN: dict[str, Callable[[memoryview], RecordRing | RowTable | CheckedRows | TombstoneRing]] = {
    "ring": lambda memory: RecordRing.open([memory], bytes),
    "rows": lambda memory: RowTable.open(memory, "holds", PAIR),
    "checked": lambda memory: CheckedRows.open(memory, "leases", 100),
    "tombstones": lambda memory: TombstoneRing.open(memory, PAIR),
}
KINDS = list(CREATE)


@pytest.fixture
def memory() -> memoryview:
    """Returns a kibibyte with other bytes in it."""
    return memoryview(bytearray(b"\xa5" * 1024))


@pytest.mark.parametrize("kind", KINDS)
def test_a_memory_opens_as_what_it_was_created(kind: str, memory: memoryview) -> None:
    """Each structure opens its own memory, with its identity, and refuses all others."""
    CREATE[kind](memory)
    for other, opened in OPEN.items():
        if other == kind:
            assert opened(memory).identity == IDENTITY
        else:
            with pytest.raises(WrongMemory):
                opened(memory)


@pytest.mark.parametrize("kind", KINDS)
def test_a_memory_that_was_never_created_is_refused(kind: str, memory: memoryview) -> None:
    """Zeros, other bytes, and a memory too small for a header are no structure."""
    for content in (memory, memoryview(bytearray(1024))):
        with pytest.raises(NeverCreated):
            OPEN[kind](content)


@pytest.mark.parametrize("kind", ["rows", "checked", "tombstones"])
def test_a_memory_without_a_header_is_refused(kind: str) -> None:
    """A memory that is smaller than a header is another one, and too small to create in."""
    with pytest.raises(WrongMemory, match="64 bytes"):
        OPEN[kind](memoryview(bytearray(64)))
    with pytest.raises(ValueError, match="a memory of 128 bytes has no"):
        CREATE[kind](memoryview(bytearray(128)))


@pytest.mark.parametrize("kind", KINDS)
def test_another_version_is_refused(kind: str, memory: memoryview) -> None:
    """The version comes before all else, since the rest may be another then."""
    CREATE[kind](memory)
    memory.cast("Q")[1] = 2
    with pytest.raises(OtherVersion, match="format 2, and this program writes 1"):
        OPEN[kind](memory)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_header_is_refused(kind: str, memory: memoryview) -> None:
    """Any changed byte of the header's fields and of its sum is found."""
    CREATE[kind](memory)
    for at in range(16, 104):
        memory[at] ^= 1
        with pytest.raises(JournalDamaged, match="header"):
            OPEN[kind](memory)
        memory[at] ^= 1
    OPEN[kind](memory)


def test_an_identity_has_sixteen_bytes(memory: memoryview) -> None:
    """Another length is refused."""
    with pytest.raises(ValueError, match="16 bytes, not 5"):
        RowTable.create(memory, b"short", "holds", PAIR)


def test_a_name_has_a_bound(memory: memoryview) -> None:
    """A name that does not fit is refused before anything is written."""
    before = bytes(memory)
    with pytest.raises(ValueError, match="longer than 32"):
        RowTable.create(memory, IDENTITY, "h" * 27, PAIR)
    assert memory == before
    RowTable.create(memory, IDENTITY, "h" * 20, PAIR)
    CheckedRows.create(memory, IDENTITY, "h" * 16, 8)
