"""Memory without a carrier: made here, and kept by nobody else."""

import errno
import os
from pathlib import Path

import pytest

from kvstore.holder.holder_process import REQUIRED_SEALS, DescriptorIdentity, DescriptorKind
from kvstore.storage.errors import NotEnoughMemory
from kvstore.storage.held_memory import HeldMemory, data_name, process_name, table_name
from processes.open_descriptors import open_descriptors

SIZE = 3 * 4096


def test_memory_is_made_as_a_carrier_makes_it() -> None:
    """It is sealed, has all its pages, is zero, and other users cannot open it again."""
    descriptor = HeldMemory().make("journal-1", SIZE)
    status, identity = os.fstat(descriptor), DescriptorIdentity.of(descriptor)
    assert (identity.kind, identity.seals) == (DescriptorKind.MEMFD, REQUIRED_SEALS)
    assert (status.st_size, status.st_mode & 0o777) == (SIZE, 0o600)
    assert status.st_blocks * 512 >= SIZE
    assert os.pread(descriptor, SIZE, 0) == bytes(SIZE)
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


def test_nothing_is_deposited() -> None:
    """Whatever is kept or forgotten, and memory ends with this process."""
    held = HeldMemory()
    held.keep("process-1", -1)
    held.forget("process-1", "never")
    assert not held.outlives


def test_more_than_there_is_is_refused(tmp_path: Path) -> None:
    """The error has both numbers, and no descriptor is left."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 3 kB\n", encoding="utf-8")
    before = open_descriptors("memfd:journal-2")
    with pytest.raises(NotEnoughMemory) as refused:
        HeldMemory(root=tmp_path).make("journal-2", SIZE)
    assert (refused.value.requested_bytes, refused.value.available_bytes) == (SIZE, 3072)
    assert open_descriptors("memfd:journal-2") <= before


def test_a_refusal_of_the_kernel_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor is left either."""

    def refuse(*_: int) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr("kvstore.storage.held_memory.allocate", refuse)
    before = open_descriptors("memfd:journal-3")
    with pytest.raises(NotEnoughMemory, match="the kernel refused"):
        HeldMemory().make("journal-3", SIZE)
    assert open_descriptors("memfd:journal-3") <= before


def test_names_tell_what_is_behind_them() -> None:
    """A later server finds each descriptor by its number."""
    assert [data_name(7), table_name(7), process_name(7)] == [
        "extent-7.data",
        "extent-7.generations",
        "process-7",
    ]
