"""The header in front of each piece of the journal's memory."""

import pytest

from kvstore.ring import (
    JournalDamaged,
    NeverCreated,
    OtherVersion,
    RecordRing,
    WrongMemory,
)
from kvstore.ring.header import FORMAT_VERSION, MemoryHeader, commit, read_header
from kvstore.succession.journal.hold_table import HoldTable

IDENTITY = b"sixteen random b"
KINDS = ("ring", "holds")


def create(kind: str, memory: memoryview) -> None:
    """Creates a structure in a memory."""
    if kind == "ring":
        RecordRing.create([memory], IDENTITY, bytes)
    else:
        HoldTable.create(memory, IDENTITY)


def opened(kind: str, memory: memoryview) -> RecordRing | HoldTable:
    """Opens a structure."""
    return RecordRing.open([memory], bytes) if kind == "ring" else HoldTable.open(memory)


@pytest.fixture
def memory() -> memoryview:
    """Returns a kibibyte with other bytes in it."""
    return memoryview(bytearray(b"\xa5" * 1024))


@pytest.mark.parametrize("kind", KINDS)
def test_a_memory_opens_as_what_it_was_created(kind: str, memory: memoryview) -> None:
    """Each structure opens its own memory, with its identity, and refuses all others."""
    create(kind, memory)
    for other in KINDS:
        if other == kind:
            assert opened(other, memory).identity == IDENTITY
        else:
            with pytest.raises(WrongMemory):
                opened(other, memory)


@pytest.mark.parametrize("kind", KINDS)
def test_a_memory_that_was_never_created_is_refused(kind: str, memory: memoryview) -> None:
    """Zeros and other bytes are no structure."""
    for content in (memory, memoryview(bytearray(1024))):
        with pytest.raises(NeverCreated):
            opened(kind, content)


def test_a_memory_without_a_header_is_refused() -> None:
    """A memory that is smaller than a header is another one."""
    with pytest.raises(WrongMemory, match="64 bytes"):
        read_header(memoryview(bytearray(64)))


@pytest.mark.parametrize("kind", KINDS)
def test_another_version_is_refused(kind: str, memory: memoryview) -> None:
    """The version comes before all else, since the rest may be another then."""
    create(kind, memory)
    memory.cast("Q")[1] = FORMAT_VERSION + 1
    with pytest.raises(OtherVersion, match=f"format {FORMAT_VERSION + 1}, and this program"):
        opened(kind, memory)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_header_is_refused(kind: str, memory: memoryview) -> None:
    """Any changed byte of the header's fields and of its sum is found."""
    create(kind, memory)
    for at in range(16, 104):
        memory[at] ^= 1
        with pytest.raises(JournalDamaged, match="header"):
            opened(kind, memory)
        memory[at] ^= 1
    opened(kind, memory)


def test_unfit_headers_are_refused(memory: memoryview) -> None:
    """An identity has sixteen bytes, and a kind at most 32. Before that nothing is written."""
    before = bytes(memory)
    with pytest.raises(ValueError, match="16 bytes, not 5"):
        MemoryHeader("kind", b"short", (1, 2, 3, 4)).write(memory)
    with pytest.raises(ValueError, match="longer than 32"):
        MemoryHeader("k" * 33, IDENTITY, (1, 2, 3, 4)).write(memory)
    assert memory == before
    whole = MemoryHeader("k" * 32, IDENTITY, (1, 2, 3, 4))
    whole.write(memory)
    commit(memory)
    assert read_header(memory) == whole
