"""The pages of an extent: which ones are allocated, and when they are mapped."""

import fcntl
import os
from contextlib import closing
from pathlib import Path

import pytest

from kvstore.storage.errors import NotEnoughMemory
from kvstore.storage.extent import ExtentShape, HostExport
from kvstore.storage.host import populate
from kvstore.storage.host.host_memory import HostExtent
from kvstore.storage.host.hugepages import HUGEPAGE_BYTES, Hugepages, available_bytes
from kvstore.storage.host.memfd import ENOUGH_THREADS, SEALS, HostTerms
from processes.hugepage_pool import hugepages_reserved
from processes.mapping_flags import mapping_flags
from processes.open_descriptors import open_descriptors
from processes.resident_bytes import resident_bytes

SHAPE = ExtentShape(extent_id=17, arena_id=1, tier=1, slot_count=4, slot_bytes=1000)


def test_a_kernel_without_populate_allocates_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux before 5.14 refuses the advice, as any kernel refuses an unknown number."""
    monkeypatch.setattr(populate, "MADV_POPULATE_WRITE", 9999)
    with closing(HostExtent.allocate(SHAPE, HostTerms(threads=ENOUGH_THREADS))) as extent:
        status = os.fstat(extent.describe().export.descriptor)
        assert status.st_blocks * 512 >= SHAPE.size_bytes


@pytest.mark.parametrize(
    ("threads", "registered", "mapped"),
    [(1, False, False), (ENOUGH_THREADS, False, True), (1, True, True)],
)
def test_pages_are_mapped_where_that_pays(*, threads: int, registered: bool, mapped: bool) -> None:
    """By enough threads, or for a device; otherwise only allocated, and mapped at a first touch."""
    register = (lambda _: lambda: None) if registered else None
    with closing(HostExtent.allocate(SHAPE, HostTerms(threads=threads), register)) as extent:
        assert os.fstat(extent.describe().export.descriptor).st_blocks * 512 >= SHAPE.size_bytes
        assert (resident_bytes(f"kvstore-extent-{SHAPE.extent_id}") > 0) == mapped


def test_an_extent_of_reserved_pages_is_as_any_other() -> None:
    """Its memfd has whole pages of 2 MiB, sealed, which return to the pool with it."""
    shape = SHAPE._replace(slot_bytes=HUGEPAGE_BYTES // 4 + 4096)
    terms = HostTerms(hugepages=Hugepages.RESERVED, threads=2)
    with hugepages_reserved(2) as had:
        if not had:
            with pytest.raises(NotEnoughMemory, match="nr_hugepages to at least"):
                HostExtent.allocate(shape, terms)
            return
        before = available_bytes()
        with closing(HostExtent.allocate(shape, terms)) as extent:
            export = extent.describe().export
            assert isinstance(export, HostExport)
            assert (export.size_bytes, before - available_bytes()) == (2 * HUGEPAGE_BYTES,) * 2
            assert os.fstat(export.descriptor).st_size == export.size_bytes
            assert fcntl.fcntl(export.descriptor, fcntl.F_GET_SEALS) & SEALS == SEALS
            assert {"dc", "dd", "ht"} <= mapping_flags(shape.extent_id)
            extent.fill(3, 7)
            assert bytes(extent.read(3) or b"") == bytes([7]) * shape.slot_bytes
            assert not any(extent.read(2) or b"1")
        assert available_bytes() == before


def test_a_pool_that_is_too_small_is_refused_before_allocating() -> None:
    """The error says which number to set, and no descriptor stays open."""
    slots = available_bytes() // HUGEPAGE_BYTES + 8
    shape = SHAPE._replace(slot_bytes=HUGEPAGE_BYTES, slot_count=slots)
    before = open_descriptors("memfd:")
    with pytest.raises(NotEnoughMemory, match="nr_hugepages to at least") as refused:
        HostExtent.allocate(shape, HostTerms(hugepages=Hugepages.RESERVED))
    assert refused.value.requested_bytes == shape.size_bytes
    assert open_descriptors("memfd:") <= before


def test_transparent_pages_are_asked_for() -> None:
    """The mapping has the kernel's advice, whether or not the kernel has such pages."""
    with closing(HostExtent.allocate(SHAPE, HostTerms(hugepages=Hugepages.TRANSPARENT))):
        built = Path("/sys/kernel/mm/transparent_hugepage").exists()
        assert ("hg" in mapping_flags(SHAPE.extent_id)) == built
