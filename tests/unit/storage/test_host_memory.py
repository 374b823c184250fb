"""Host extents: real memory, sealed."""

import errno
import fcntl
import mmap
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kvstore.holder.holder_client import HolderClient
from kvstore.storage.cuda.registration import Register
from kvstore.storage.errors import NotEnoughMemory
from kvstore.storage.extent import ExtentShape
from kvstore.storage.held_memory import HeldMemory
from kvstore.storage.host.host_memory import HostExtent, HostMemory
from kvstore.storage.host.hugepages import HUGEPAGE_BYTES, SHMEM_ENABLED, Hugepages
from kvstore.storage.host.memfd import HostTerms
from processes.mapping_flags import mapping_flags
from processes.open_descriptors import open_descriptors

SHAPE = ExtentShape(extent_id=7, arena_id=1, tier=1, slot_count=4, slot_bytes=1000)


@pytest.fixture
def extent() -> Iterator[HostExtent]:
    """Provides a small extent."""
    with closing(HostExtent.allocate(SHAPE)) as made:
        yield made


def read(extent: HostExtent, index: int) -> memoryview:
    """Returns a slot's bytes."""
    page = extent.read(index)
    assert page is not None
    return page


def test_another_mapping_of_the_descriptor_sees_the_same_bytes(extent: HostExtent) -> None:
    """Bytes written through the exported descriptor are read in this process, in their slot."""
    export, size = extent.describe().export, SHAPE.slot_bytes
    with mmap.mmap(export.descriptor, export.size_bytes) as other:
        other[size : size + 4] = b"page"
    assert bytes(read(extent, 1)) == b"page" + bytes(size - 4)
    assert not any(read(extent, 0))


def test_a_reader_reads_slots_in_place(extent: HostExtent) -> None:
    """As they are, and not to be written."""
    reader = extent.reader()
    extent.fill(1, 7)
    pages = [reader(index) for index in (0, 1)]
    assert [bytes(page or b"") for page in pages] == [
        bytes(SHAPE.slot_bytes),
        bytes([7]) * SHAPE.slot_bytes,
    ]
    assert all(page is not None and page.readonly for page in pages)


def test_a_slot_is_filled_whole_and_no_other(extent: HostExtent) -> None:
    """One value is written into each byte of a slot."""
    extent.fill(1, 0xDB)
    assert bytes(read(extent, 1)) == b"\xdb" * SHAPE.slot_bytes
    assert not any(read(extent, 0))
    assert not any(read(extent, 2))


def test_what_is_read_cannot_be_written(extent: HostExtent) -> None:
    """A slot's bytes are somebody else's."""
    with pytest.raises(TypeError):
        read(extent, 0)[0] = 1


def test_fresh_memory_is_zero(extent: HostExtent) -> None:
    """A tenant that is given an extent finds nothing of anybody's in it."""
    assert not any(any(read(extent, index)) for index in range(SHAPE.slot_count))


@pytest.mark.parametrize("size", [0, SHAPE.size_bytes * 2])
def test_nobody_can_change_the_size(extent: HostExtent, size: int) -> None:
    """A worker that holds the descriptor can neither shrink nor grow what others mapped."""
    with pytest.raises(PermissionError):
        os.ftruncate(extent.describe().export.descriptor, size)


def test_nobody_can_add_seals(extent: HostExtent) -> None:
    """A worker cannot seal the memory against writing for others."""
    descriptor = extent.describe().export.descriptor
    with pytest.raises(PermissionError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_all_memory_is_there_before_it_is_used(extent: HostExtent) -> None:
    """Every byte was allocated, so that no write to a slot can fail later."""
    status = os.fstat(extent.describe().export.descriptor)
    assert status.st_blocks * 512 >= SHAPE.size_bytes


def test_the_descriptor_is_closed_in_programs_that_are_started(extent: HostExtent) -> None:
    """A program that the server starts does not inherit tenants' memory."""
    assert not os.get_inheritable(extent.describe().export.descriptor)


def test_pages_stay_out_of_children_and_core_dumps(extent: HostExtent) -> None:
    """The server's own mapping is neither copied by fork (dc) nor dumped (dd)."""
    assert {"dc", "dd"} <= mapping_flags(extent.shape.extent_id)


def test_a_closed_extent_is_gone() -> None:
    """Closing unmaps and closes the descriptor, and can be repeated."""
    extent = HostExtent.allocate(SHAPE)
    descriptor = extent.describe().export.descriptor
    extent.close()
    extent.close()
    with pytest.raises(OSError, match="descriptor") as bad:
        os.fstat(descriptor)
    assert bad.value.errno == errno.EBADF
    assert mapping_flags(SHAPE.extent_id) == set()


def test_what_is_being_read_stays_mapped_until_then(extent: HostExtent) -> None:
    """Closing takes no memory from under a reader; then nothing can be read any more."""
    extent.fill(0, 7)
    page = read(extent, 0)
    extent.close()
    assert page[-1] == 7
    assert mapping_flags(SHAPE.extent_id)
    del page
    assert mapping_flags(SHAPE.extent_id) == set()
    assert extent.read(0) is None
    assert extent.reader()(0) is None
    extent.fill(0, 7)


def test_more_than_there_is_is_refused_before_allocating(tmp_path: Path) -> None:
    """An extent beyond MemAvailable is refused with both numbers and leaves no descriptor."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 3 kB\n", encoding="utf-8")
    before = open_descriptors("memfd:")
    with pytest.raises(NotEnoughMemory) as refused:
        HostExtent.allocate(SHAPE, HostTerms(tmp_path))
    assert (refused.value.requested_bytes, refused.value.available_bytes) == (4000, 3072)
    assert open_descriptors("memfd:") <= before


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Limits the size of files, so that the kernel refuses as if it had no memory."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_refusal_of_the_kernel_is_the_same_error(tmp_path: Path) -> None:
    """A refusal of the kernel, although memory seemed to be free, is NotEnoughMemory too."""
    before = open_descriptors("memfd:")
    with file_size_limit(1000), pytest.raises(NotEnoughMemory, match="kernel refused"):
        HostExtent.allocate(SHAPE, HostTerms(tmp_path))
    assert open_descriptors("memfd:") <= before


def test_who_comes_to_read_as_it_is_closed_reads_nothing(extent: HostExtent) -> None:
    """If the mapping goes between the two looks of a reader, it gets no page and no error."""
    assert extent._mapping is not None
    extent._mapping.close()
    assert extent.read(0) is None


@pytest.mark.parametrize(("word", "lines"), [("[never]", 1), ("[advise]", 0)])
def test_a_machine_without_transparent_pages_is_logged(
    tmp_path: Path, word: str, lines: int
) -> None:
    """Once, with the setting to change."""
    path = tmp_path / SHMEM_ENABLED
    path.parent.mkdir(parents=True)
    path.write_text(f"always {word} force\n", encoding="ascii")
    with capture_logs() as logged:
        HostMemory(tmp_path, hugepages=Hugepages.TRANSPARENT)
    assert [line["event"] for line in logged] == ["transparent_hugepages_off"] * lines
    assert all("shmem_enabled" in line["advice"] for line in logged)


def test_a_node_that_the_kernel_refuses_is_logged_and_not_used() -> None:
    """Memory comes from any node then, as it would without the setting."""
    with capture_logs() as logged:
        source = HostMemory(numa_node=1023)
    assert [(line["event"], line["numa_node"]) for line in logged] == [("numa_node_unusable", 1023)]
    source.allocate(SHAPE).close()


def test_a_budget_beyond_the_pool_is_foretold(tmp_path: Path) -> None:
    """By the bound that counts then: the pool, not the machine's memory."""
    source = HostMemory(tmp_path, hugepages=Hugepages.RESERVED)
    assert source.granularity == HUGEPAGE_BYTES
    with capture_logs() as logged:
        source.warn_beyond(1 << 30, tier=2)
    assert [(line["event"], line["source"], line["available_bytes"]) for line in logged] == [
        ("tier2_bytes_beyond_memory", "vm.nr_hugepages", 0)
    ]


@pytest.mark.parametrize(
    ("hugepages", "register", "sources"),
    [
        (Hugepages.OFF, None, ["MemAvailable"]),
        (Hugepages.TRANSPARENT, None, ["MemAvailable", "/sys/fs/cgroup/memory.max"]),
        (Hugepages.OFF, lambda _: lambda: None, ["MemAvailable", "/sys/fs/cgroup/memory.max"]),
    ],
    ids=["ordinary", "large", "registered"],
)
def test_a_limit_that_counts_a_holder_s_pages_is_the_holder_s(
    tmp_path: Path, hugepages: Hugepages, register: Register | None, sources: list[str]
) -> None:
    """The server's own limit is compared with what the server makes itself."""
    files = {
        "proc/meminfo": "MemAvailable: 64 kB",
        "proc/self/cgroup": "0::/",
        "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
        "sys/fs/cgroup/memory.max": "65536",
        "sys/fs/cgroup/memory.current": "0",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    held = HeldMemory(HolderClient(tmp_path / "holder"))
    source = HostMemory(tmp_path, register, hugepages=hugepages, held=held)
    with capture_logs() as logged:
        source.warn_beyond(1 << 30)
    assert [line["source"] for line in logged] == sources


def test_memory_is_unregistered_before_it_goes() -> None:
    """A device that was told of it is told first, once."""
    told: list[object] = []

    def register(memory: memoryview) -> Callable[[], None]:
        told.append(memory.nbytes)
        return lambda: told.append(mapping_flags(SHAPE.extent_id) != set())

    extent = HostExtent.allocate(SHAPE, register=register)
    extent.close()
    extent.close()
    assert told == [SHAPE.size_bytes, True]
    assert mapping_flags(SHAPE.extent_id) == set()


def test_who_cannot_be_told_of_memory_leaves_none() -> None:
    """The callback's error is raised, and neither a descriptor nor a mapping is left."""

    def register(memory: memoryview) -> Callable[[], None]:
        raise RuntimeError(f"{memory.nbytes}")

    before = open_descriptors("memfd:")
    with pytest.raises(RuntimeError):
        HostExtent.allocate(SHAPE, register=register)
    assert open_descriptors("memfd:") <= before
