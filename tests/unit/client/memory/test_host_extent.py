"""An extent of host memory."""

import fcntl
import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kvstore.v1 import types_pb2
from kvstore_client.memory import host_extent
from kvstore_client.memory.host_extent import POPULATED_BYTES, HostExtent
from kvstore_client.memory.mapped_extent import UntrustedExtent
from kvstore_client.memory.shared_memory import REQUIRED_SEALS
from kvstore_client.values.page_layout import OpaqueContent, PagedContent, PageLayout
from processes.open_descriptors import open_descriptors
from processes.resident_bytes import resident_bytes
from wire.scripted_store import sealed_memfd as any_memfd

PAGE, MIB = mmap.PAGESIZE, 1 << 20
# What other tests mapped may be there still, for a thread of theirs or the collector.
NAME = "kvstore-host-extent"


def sealed_memfd(size: int, seals: int, content: bytes = b"") -> int:
    """Returns a sealed memfd with a name that no other test uses."""
    return any_memfd(size, seals, content, name=NAME)


def described(slot_count: int = 2, slot_bytes: int = PAGE, offset: int = 0) -> types_pb2.Extent:
    """Returns an extent whose handle has exactly the needed size."""
    host = types_pb2.HostHandle(size_bytes=offset + slot_count * slot_bytes)
    return types_pb2.Extent(
        extent_id=7,
        arena_id=3,
        slot_count=slot_count,
        slot_bytes=slot_bytes,
        offset=offset,
        host=host,
    )


@pytest.fixture
def memory() -> Iterator[int]:
    """Provides a sealed memfd of two pages."""
    descriptor = sealed_memfd(2 * PAGE, REQUIRED_SEALS, b"first")
    yield descriptor
    try:
        os.close(descriptor)
    except OSError:
        return


def mapping_flags() -> list[str]:
    """Returns the VmFlags of each mapping of a test's memfd in this process."""
    flags, inside = [], False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if "-" in line.split(" ")[0]:
            inside = f"memfd:{NAME}" in line
        elif inside and line.startswith("VmFlags:"):
            flags.append(line)
    return flags


def faults_of_touching(view: memoryview) -> int:
    """Writes into each memory page. Returns the number of page faults."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for place in range(0, len(view), PAGE):
        view[place] = 1
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_memory_that_was_populated_is_touched_without_a_fault() -> None:
    """Populating in steps prevents page faults and leaves the bytes as they are."""
    slots = 2 * POPULATED_BYTES // PAGE + 3
    offset = PAGE + 64
    extent_of = described(slots, offset=offset)
    descriptor = sealed_memfd(extent_of.host.size_bytes, REQUIRED_SEALS, b"first")
    touched, untouched = (HostExtent(extent_of, descriptor) for _ in range(2))
    os.close(descriptor)
    begin, steps = 0, 0
    while (end := touched.populate(begin)) is not None:
        assert end == begin + POPULATED_BYTES
        begin, steps = end, steps + 1
    assert steps == 2
    assert not any(touched.view())
    assert faults_of_touching(touched.view()) < slots // 10
    assert faults_of_touching(untouched.view()) > slots // 10


@pytest.fixture
def large() -> HostExtent:
    """Provides 40 slots of 1 MiB, in memory that is allocated and not yet in page tables."""
    extent_of = described(40, MIB)
    descriptor = sealed_memfd(extent_of.host.size_bytes, REQUIRED_SEALS)
    os.posix_fallocate(descriptor, 0, extent_of.host.size_bytes)
    extent = HostExtent(extent_of, descriptor)
    os.close(descriptor)
    return extent


def test_slots_are_filled_before_they_are_written(large: HostExtent) -> None:
    """Writes into slots that were filled cause no page faults, and other slots are not filled."""
    large.fill([30, 2, 3, *range(9, 18)], slice(None))
    # The kernel also maps up to 64 KiB around.
    assert resident_bytes(NAME) in range(12 * MIB, 13 * MIB)
    assert not any(large.slot(2))
    for slot in (2, 3, 9, 17, 30):
        assert faults_of_touching(large.slot(slot)) < 10
    assert faults_of_touching(large.slot(20)) > 200
    with pytest.raises(IndexError):
        large.fill([40], slice(None))


def test_a_part_of_each_slot_is_filled(large: HostExtent) -> None:
    """Only the given bytes of each slot are filled."""
    large.fill([4, 5], slice(MIB // 4, MIB // 2))
    assert resident_bytes(NAME) in range(MIB // 2, MIB)
    assert faults_of_touching(large.slot(5)[MIB // 4 : MIB // 2]) < 10


def test_a_slot_is_filled_once(large: HostExtent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call for a slot does not ask the kernel again, because that takes time too."""
    filled: list[int] = []
    monkeypatch.setattr(host_extent, "populate", lambda view: filled.append(len(view)))
    large.fill(range(5), slice(None))
    large.fill(range(6), slice(None))
    large.fill(range(6), slice(None))
    assert sum(filled) == 6 * MIB
    assert max(filled) <= POPULATED_BYTES


def test_slots_are_the_memory_of_all_who_map_it(memory: int) -> None:
    """Bytes that one mapping writes into a slot are visible in another mapping and in the memfd."""
    one, other = HostExtent(described(), memory), HostExtent(described(), memory)
    assert bytes(other.slot(0)[:5]) == b"first"
    one.slot(1)[:6] = b"second"
    assert bytes(other.view()[PAGE : PAGE + 6]) == b"second"
    assert os.pread(memory, 6, PAGE) == b"second"
    assert (one.extent_id, one.arena_id, len(one.view())) == (7, 3, 2 * PAGE)


def test_slots_begin_at_the_offset() -> None:
    """Slot 0 begins at the extent's offset."""
    descriptor = sealed_memfd(PAGE + 64, REQUIRED_SEALS, bytes(range(256)))
    extent = HostExtent(described(2, 32, offset=PAGE), descriptor)
    os.pwrite(descriptor, b"zero", PAGE)
    os.pwrite(descriptor, b"one", PAGE + 32)
    os.close(descriptor)
    assert bytes(extent.slot(0)[:4]) == b"zero"
    assert bytes(extent.slot(1)[:3]) == b"one"
    assert len(extent.view()) == 64


def test_the_mapping_is_neither_inherited_nor_dumped(memory: int) -> None:
    """The mapping is excluded from forks and core dumps, and needs no descriptor."""
    before = open_descriptors("memfd:")
    extent = HostExtent(described(), memory)
    assert open_descriptors("memfd:") <= before
    (flags,) = mapping_flags()
    assert {"dc", "dd"} <= set(flags.split())
    os.close(memory)
    assert bytes(extent.slot(0)[:5]) == b"first"


def test_the_last_view_unmaps(memory: int) -> None:
    """The memory is unmapped once, after the extent, its views and its tensors are gone."""
    gone: list[int] = []
    extent = HostExtent(described(), memory, gone.append)
    layout = PageLayout(1, PAGE, OpaqueContent(b"x"))
    view, tensor = extent.slot(0), extent.tensor(layout)
    del extent
    assert (gone, len(mapping_flags())) == ([], 1)
    del view
    row = tensor[0]
    del tensor
    assert (gone, row[0].item()) == ([], ord("f"))
    del row
    assert (gone, mapping_flags()) == ([7], [])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_unmap(memory: int) -> None:
    """Dropping the last view in a forked child unmaps nothing."""
    gone: list[int] = []
    extent: HostExtent | None = HostExtent(described(), memory, gone.append)
    pid = os.fork()
    if pid == 0:
        extent = None
        os._exit(len(gone) + len(mapping_flags()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert extent is not None
    assert bytes(extent.slot(0)[:5]) == b"first"


@pytest.mark.parametrize("missing", [fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW])
def test_memory_that_could_shrink_is_refused(missing: int) -> None:
    """A memfd that could shrink or grow is refused, because touching it could kill this process."""
    descriptor = sealed_memfd(2 * PAGE, REQUIRED_SEALS & ~missing)
    with pytest.raises(UntrustedExtent, match="seals"):
        HostExtent(described(), descriptor)
    os.close(descriptor)
    assert mapping_flags() == []


def test_a_file_is_refused(tmp_path: Path) -> None:
    """A file that is no memfd is refused, because it has no seals."""
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * PAGE))
    with path.open("r+b") as file, pytest.raises(UntrustedExtent, match="no memfd"):
        HostExtent(described(), file.fileno())


def test_sizes_that_do_not_fit_are_refused(memory: int) -> None:
    """Slots beyond the handle, a handle beyond the memory, and missing slots are refused."""
    beyond_memory = described(3)
    beyond_handle = described()
    beyond_handle.host.size_bytes = PAGE
    for wrong in (beyond_memory, beyond_handle):
        with pytest.raises(UntrustedExtent, match="bytes"):
            HostExtent(wrong, memory)
    for wrong in (described(0), described(2, 0)):
        with pytest.raises(UntrustedExtent, match="no slots"):
            HostExtent(wrong, memory)


def test_memory_that_does_not_fit_is_an_error() -> None:
    """An extent too large for the address space is refused with its size."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    size = 1 << 40
    descriptor = sealed_memfd(size, REQUIRED_SEALS)
    resource.setrlimit(resource.RLIMIT_AS, (size // 2, limits[1]))
    try:
        with pytest.raises(OSError, match=f"mmap of {size} bytes"):
            HostExtent(described(1, size), descriptor)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        os.close(descriptor)


@pytest.mark.parametrize("index", [-1, 2])
def test_a_slot_that_is_none_is_refused(memory: int, index: int) -> None:
    """A slot number outside the extent is refused."""
    with pytest.raises(IndexError, match="has 2 slots"):
        HostExtent(described(), memory).slot(index)


def test_a_tensor_has_the_shape_of_the_layout() -> None:
    """A paged extent is a tensor of the layout's dtype and shape, also if slots exceed pages."""
    layout = PageLayout.paged(2, PagedContent(3, 1, 4, "float32"))
    padded = layout.page_bytes + 64
    descriptor = sealed_memfd(2 * padded, REQUIRED_SEALS)
    extent = HostExtent(described(2, padded), descriptor)
    os.close(descriptor)
    tensor = extent.tensor(layout)
    assert (tuple(tensor.shape), tensor.dtype) == ((2, 3, 2, 2, 1, 4), torch.float32)
    tensor[1] = 1.0
    assert bytes(extent.slot(1)[: layout.page_bytes]) == b"\0\0\x80\x3f" * (layout.page_bytes // 4)
    assert not any(extent.slot(0))
    assert not any(extent.slot(1)[layout.page_bytes :])
