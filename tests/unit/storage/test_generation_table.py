"""The table of an extent's generations: the store writes it, others only read."""

import ctypes
import errno
import fcntl
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kvstore.core.values.slots import ExtentSlots, recycle
from kvstore.storage import generation_table
from kvstore.storage.errors import NotEnoughMemory
from kvstore.storage.generation_table import SEALS, GenerationTable, opened_again
from processes import other_user


@pytest.fixture
def table() -> Iterator[GenerationTable]:
    """Provides a table of four slots."""
    with closing(GenerationTable.make(7, 4)) as made:
        yield made


def test_what_the_store_writes_is_seen_by_who_maps_the_table(table: GenerationTable) -> None:
    """Generations begin at zero, and each is one uint64 at its slot's place."""
    described = table.describe()
    reader = memoryview(mmap.mmap(described.descriptor, 0, prot=mmap.PROT_READ)).cast("Q")
    assert described.size_bytes == 32
    assert list(reader) == [0, 0, 0, 0]
    table.view[2] = (1 << 63) + 5
    assert list(reader) == [0, 0, (1 << 63) + 5, 0]


def test_nobody_else_can_write_or_resize_the_table(table: GenerationTable) -> None:
    """A process with the descriptor may only read: no write, mapping, size or seal gets through."""
    descriptor = os.dup(table.describe().descriptor)
    assert fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) == SEALS
    with pytest.raises(PermissionError):
        mmap.mmap(descriptor, 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(descriptor, b"x", 0)
    for size in (0, 1 << 20):
        with pytest.raises(OSError, match="Invalid argument"):
            os.ftruncate(descriptor, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    os.close(descriptor)


def test_a_reader_cannot_make_its_mapping_writable(table: GenerationTable) -> None:
    """The kernel refuses mprotect too, because the description is open for reading only."""
    export = table.describe()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    pages = mmap.PAGESIZE
    address = libc.mmap(
        None, ctypes.c_size_t(pages), mmap.PROT_READ, mmap.MAP_SHARED, export.descriptor, 0
    )
    try:
        both = mmap.PROT_READ | mmap.PROT_WRITE
        assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(pages), both) == -1
        assert ctypes.get_errno() == errno.EACCES
    finally:
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(pages))


@pytest.mark.skipif(not other_user.POSSIBLE, reason="only root can be several users")
def test_another_user_cannot_open_it_again_to_write(table: GenerationTable) -> None:
    """A worker of another uid reads by its descriptor, and opens the file in no way."""
    descriptor = table.describe().descriptor

    def worker() -> bytes:
        for flags in (os.O_RDWR, os.O_WRONLY, os.O_RDONLY):
            with pytest.raises(PermissionError):
                opened_again(descriptor, flags)
        with pytest.raises(PermissionError):
            mmap.mmap(descriptor, 0)
        with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as reader:
            return reader[:8]

    table.view[0] = 9
    assert int.from_bytes(other_user.as_user(54321, 54321, worker), sys.byteorder) == 9


def test_a_later_process_of_the_store_writes_the_same_table(table: GenerationTable) -> None:
    """The store's uid can open the file to write, and every reader sees what that mapping writes.

    A seal against writing made this impossible.
    """
    export = table.describe()
    reader = memoryview(mmap.mmap(export.descriptor, 0, prot=mmap.PROT_READ)).cast("Q")
    successor = opened_again(export.descriptor, os.O_RDWR)
    assert os.fstat(successor).st_ino == os.fstat(export.descriptor).st_ino
    memoryview(mmap.mmap(successor, 0)).cast("Q")[3] = 41
    os.close(successor)
    assert (reader[3], table.view[3]) == (41, 41)


def test_the_table_keeps_one_descriptor() -> None:
    """Only the description for workers stays open, and Python's copy of the mapping's own."""
    with closing(GenerationTable.make(424243, 4)) as table:
        assert len([name for name in _open_files() if "kvstore-generations-424243" in name]) == 2
        assert not os.get_inheritable(table.describe().descriptor)


def test_a_slot_given_back_is_seen_before_it_can_be_reserved(table: GenerationTable) -> None:
    """The core counts in the table itself."""
    slots = ExtentSlots(7, 4, table.view)
    recycle({7: slots}, list(slots.take(1)))
    assert list(table.view) == [1, 0, 0, 0]


def test_the_table_outlives_its_closing_for_who_looks_at_it(table: GenerationTable) -> None:
    """The core's view is good after the descriptor is closed; closing can be repeated."""
    view = table.view
    table.close()
    table.close()
    view[1] += 1
    assert list(view) == [0, 1, 0, 0]


def test_memory_that_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's refusal is typed, and no descriptor is left open."""

    def refuse(*_: int) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(generation_table.os, "posix_fallocate", refuse)
    with pytest.raises(NotEnoughMemory):
        GenerationTable.make(424242, 1)
    assert [name for name in _open_files() if "kvstore-generations-424242" in name] == []


def _open_files() -> list[str]:
    return [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
