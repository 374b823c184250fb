"""The table of an extent's generations: the store writes it, others only read."""

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kvstore.core.values.slots import ExtentSlots, recycle
from kvstore.storage import generation_table
from kvstore.storage.errors import NotEnoughMemory
from kvstore.storage.generation_table import F_SEAL_FUTURE_WRITE, SEALS, GenerationTable
from wire.own_logs import own_logs


@pytest.fixture
def table() -> Iterator[GenerationTable]:
    """Provides a table of four slots."""
    with closing(GenerationTable(7, 4)) as made:
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
    """A process with the descriptor may map it for reading alone, and the size stays."""
    descriptor = os.dup(table.describe().descriptor)
    assert fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) == SEALS | F_SEAL_FUTURE_WRITE
    with pytest.raises(PermissionError):
        mmap.mmap(descriptor, 0)
    with pytest.raises(PermissionError):
        os.pwrite(descriptor, b"x", 0)
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    os.close(descriptor)


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


def test_an_older_kernel_is_told_of_and_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the kernel's seal against writing, the table sets the other seals and logs that."""
    real = fcntl.fcntl

    def older(descriptor: int, command: int, argument: int = 0) -> Any:  # noqa: ANN401  # as fcntl's
        if command == fcntl.F_ADD_SEALS and argument & F_SEAL_FUTURE_WRITE:
            raise OSError(errno.EINVAL, "as Linux 5.0")
        return real(descriptor, command, argument)

    monkeypatch.setattr(generation_table.fcntl, "fcntl", older)
    with own_logs() as lines, closing(GenerationTable(1, 1)) as table:
        assert real(table.describe().descriptor, fcntl.F_GET_SEALS) == SEALS
    assert [each["event"] for each in lines] == ["generation_table_writable"]


def test_memory_that_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's refusal is typed, and no descriptor is left open."""

    def refuse(*_: int) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(generation_table.os, "posix_fallocate", refuse)
    with pytest.raises(NotEnoughMemory):
        GenerationTable(424242, 1)
    open_files = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    assert [name for name in open_files if "kvstore-generations-424242" in name] == []
