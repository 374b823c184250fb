"""Extents that a carrier keeps, which outlive the processes that made them."""

import errno
import json
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from device.card import Card, ServerCuda
from kvstore.holder.carrier import DescriptorCarrier
from kvstore.holder.holder_client import HolderClient, start_holder
from kvstore.service.random_ids import random_ids
from kvstore.storage.arenas import OFFSET_UNIT, Arenas
from kvstore.storage.cuda.device_copier import CudaCopier
from kvstore.storage.cuda.device_memory import GRANULARITY, CudaDevice
from kvstore.storage.errors import NotEnoughMemory
from kvstore.storage.extent import ExtentShape
from kvstore.storage.held_memory import HeldMemory, data_name, table_name
from kvstore.storage.host.host_memory import HostMemory
from kvstore.storage.host.hugepages import HUGEPAGE_BYTES, Hugepages
from kvstore.storage.host.memfd import ENOUGH_THREADS
from kvstore_client.testing import wait_until
from processes.carrier_rig import CarrierRig, HolderRig, SystemdRig, inodes_in
from processes.extent_worker import EXTENT, SLOT, HeldExtents, extent_worker
from processes.holder_folder import LIMIT, HolderFolder
from processes.hugepage_pool import hugepages_reserved
from processes.open_descriptors import open_descriptors
from processes.resident_bytes import resident_bytes
from processes.worker_process import WorkerProcess

# Seconds without an answer after which a client counts a holder as lost.
SHORT = 0.2


@pytest.fixture(params=[HolderRig, SystemdRig])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CarrierRig]:
    """Provides each carrier."""
    with request.param(tmp_path) as made:
        yield made


@pytest.fixture
def carrier(rig: CarrierRig) -> DescriptorCarrier:
    """Provides the carrier of this process."""
    return rig.carrier()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[HolderFolder]:
    """Provides a holder's process, which a test stops or kills."""
    with HolderFolder(tmp_path / "holder") as started:
        yield started


def owner_of(holder: HolderFolder, answer_seconds: float = LIMIT) -> HolderClient:
    """Returns a client of this process, which owns."""
    client = HolderClient(holder.path, answer_seconds=answer_seconds)
    client.own(1)
    return client


def own_inodes(arenas: Arenas, extent_id: int) -> dict[str, int]:
    """Returns the inodes of an extent of this process, by the names that a holder needs."""
    [described] = arenas.describe([extent_id])
    assert described.generation_table is not None
    return {
        data_name(extent_id): os.fstat(described.export.descriptor).st_ino,
        table_name(extent_id): os.fstat(described.generation_table.descriptor).st_ino,
    }


def memfd_name(arenas: Arenas, extent_id: int) -> str:
    """Returns the name of an extent's memfd, which says which process made it."""
    [described] = arenas.describe([extent_id])
    return str(Path(f"/proc/self/fd/{described.export.descriptor}").readlink())


def test_extents_outlive_the_process_that_made_them(rig: CarrierRig) -> None:
    """A successor has the bytes and generations of a killed process, and readers see its own."""
    with WorkerProcess("store", extent_worker, rig.kind, rig.path) as first:
        shapes = [first.ask("make", arena_id) for arena_id in (1, 1, 2)]
        extent_id = shapes[1].extent_id
        first.ask("write", extent_id, 2, b"page", 7)
        first.kill()
    carrier = rig.carrier()
    found = carrier.descriptors()
    assert len(found) == 2 * len(shapes)
    # As a worker has them, which mapped both before.
    table, data = (found[each].descriptor for each in (table_name(extent_id), data_name(extent_id)))
    generations = memoryview(mmap.mmap(table, 0, prot=mmap.PROT_READ)).cast("Q")
    page = memoryview(mmap.mmap(data, 0))[2 * SLOT : 3 * SLOT]
    successor = HeldExtents(carrier)
    successor.restore(shapes, found)
    assert successor.contents(extent_id)[2] == (b"page", 7)
    assert [each for _, each in successor.contents(shapes[0].extent_id)] == [0] * 4
    successor.write(extent_id, 2, b"next", 8)
    assert (generations[2], bytes(page[:4])) == (8, b"next")
    # The last of the budget lies behind the others of its arena.
    assert successor.make(1).arena_offset == 2 * OFFSET_UNIT
    assert not successor.arenas.has_room(SLOT)
    unmapped = data_name(shapes[0].extent_id)
    assert open_descriptors(unmapped)
    successor.destroy(shapes[0].extent_id)
    assert (open_descriptors(unmapped), unmapped in rig.inodes()) == (set(), False)


@pytest.mark.parametrize("count", [4, 7, 10])
def test_what_a_row_names_is_there_after_a_kill(
    rig: CarrierRig, tmp_path: Path, count: int
) -> None:
    """Whenever it comes: rows come after their memory and leave before it."""
    rows, seen = tmp_path / "rows", set[str]()
    rows.mkdir()

    def enough() -> bool:
        seen.update(each.name for each in rows.iterdir())
        return len(seen) >= count

    with WorkerProcess("store", extent_worker, rig.kind, rig.path) as first:
        first.tell("churn", rows)
        assert wait_until(enough)
        first.kill()
    shapes = [ExtentShape(*json.loads(each.read_text())) for each in rows.iterdir()]
    carrier = rig.carrier()
    found = carrier.descriptors()
    successor = HeldExtents(carrier)
    successor.restore(shapes, found)
    for each in shapes:
        written = each.extent_id.to_bytes(4, "little"), 1
        assert successor.contents(each.extent_id)[0] == written
    named = {name(each.extent_id) for each in shapes for name in (data_name, table_name)}
    # One extent was being made or destroyed at most.
    assert len(found.keys() - named) <= 2
    carrier.drop(found.keys() - named)
    assert rig.inodes().keys() == named


def test_large_pages_are_restored(rig: CarrierRig, carrier: DescriptorCarrier) -> None:
    """An extent of them is made here, deposited with its rounded size, and counts with that."""
    with hugepages_reserved(1) as possible:
        if not possible:
            pytest.skip("the machine has no pages of 2 MiB")
        former, later = (
            Arenas(
                budget_bytes=HUGEPAGE_BYTES,
                extent_bytes=HUGEPAGE_BYTES - SLOT,
                source=HostMemory(hugepages=Hugepages.RESERVED, held=HeldMemory(carrier)),
                extent_ids=random_ids(),
            )
            for _ in range(2)
        )
        shape = former.allocate(1, SLOT).shape
        slot = shape.extent_id << 32 | 1
        former.poison([slot])
        content = bytes(former.read(slot) or b"")
        former.close()
        found = rig.carrier().descriptors()
        data, table = found[data_name(shape.extent_id)], found[table_name(shape.extent_id)]
        later.restore(shape, data.descriptor, table.descriptor)
        assert (later.read(slot), later.allocated_bytes) == (content, HUGEPAGE_BYTES)
        later.destroy(shape.extent_id)
        assert rig.inodes() == {}


def test_a_destroyed_extent_is_the_carrier_s_no_more(
    rig: CarrierRig, carrier: DescriptorCarrier
) -> None:
    """Closing all memory at the end of a process drops nothing."""
    extents = HeldExtents(carrier)
    one, other = extents.make(1).extent_id, extents.make(1).extent_id
    extents.destroy(one)
    assert rig.inodes().keys() == {data_name(other), table_name(other)}
    extents.arenas.close()
    assert rig.inodes().keys() == {data_name(other), table_name(other)}


def test_a_carrier_makes_the_memory(carrier: DescriptorCarrier) -> None:
    """It has the carrier's name; with several threads it is mapped before it is used."""
    for threads, mapped in ((1, 0), (ENOUGH_THREADS, EXTENT)):
        source = HostMemory(held=HeldMemory(carrier), threads=threads)
        extents = HeldExtents(carrier, source)
        extent_id = extents.make(1).extent_id
        assert data_name(extent_id) in memfd_name(extents.arenas, extent_id)
        assert resident_bytes(data_name(extent_id)) == mapped
        extents.destroy(extent_id)


def register(_: memoryview) -> Callable[[], None]:
    """Registers nothing."""
    return lambda: None


@pytest.mark.parametrize(
    "options",
    [{"hugepages": Hugepages.TRANSPARENT}, {"register": register}],
    ids=["hugepages", "registered"],
)
def test_other_memory_is_made_here_and_deposited(
    rig: CarrierRig, carrier: DescriptorCarrier, options: dict[str, Any]
) -> None:
    """A carrier knows neither large pages nor a device."""
    with capture_logs():
        source = HostMemory(held=HeldMemory(carrier), threads=1, **options)
    extents = HeldExtents(carrier, source)
    extent_id = extents.make(1).extent_id
    assert "kvstore-extent" in memfd_name(extents.arenas, extent_id)
    assert rig.inodes() == own_inodes(extents.arenas, extent_id)
    extents.destroy(extent_id)
    assert rig.inodes() == {}


def test_restored_memory_is_registered_anew(rig: CarrierRig) -> None:
    """The successor's own device has it until the extent is destroyed."""
    with WorkerProcess("store", extent_worker, rig.kind, rig.path) as first:
        shape = first.ask("make", 1)
        first.kill()
    card, carrier = Card(), rig.carrier()
    with closing(CudaCopier(0, ServerCuda(card))) as copier:
        source = HostMemory(register=copier.register, held=HeldMemory(carrier))
        extents = HeldExtents(carrier, source)
        extents.restore([shape], carrier.descriptors())
        assert wait_until(lambda: sum(card.registered.values()) == EXTENT)
        extents.destroy(shape.extent_id)
        assert (card.registered, rig.inodes()) == ({}, {})


def test_memory_of_a_device_is_not_deposited(rig: CarrierRig, carrier: DescriptorCarrier) -> None:
    """Its tables are not either; host memory beside it is."""
    card = Card()
    with closing(CudaDevice(0, lambda: ServerCuda(card))) as device:
        upper = Arenas(budget_bytes=card.size_bytes, extent_bytes=GRANULARITY, source=device)
        with closing(upper):
            upper.allocate(1, SLOT)
            lower = HeldExtents(carrier)
            extent_id = lower.make(1).extent_id
            assert rig.inodes() == own_inodes(lower.arenas, extent_id)


def test_a_refusal_is_one_of_memory(rig: CarrierRig, carrier: DescriptorCarrier) -> None:
    """The reason is the carrier's, nothing is deposited or behind, and the budget is as before."""
    source = HostMemory(held=HeldMemory(carrier), threads=1)
    arenas = Arenas(budget_bytes=1 << 62, extent_bytes=1 << 61, source=source)
    with pytest.raises(NotEnoughMemory, match=r"extent-1\.data needs 2305843009213693952 bytes"):
        arenas.allocate(1, 1 << 61)
    assert (rig.inodes(), carrier.behind, arenas.allocated_bytes) == ({}, 0, 0)


@pytest.mark.parametrize("kind", [HolderRig, SystemdRig])
def test_a_full_carrier_refuses_an_extent(
    tmp_path: Path, kind: type[HolderRig] | type[SystemdRig]
) -> None:
    """It has room for the table alone; then neither of both stays, and the reason has the limit."""
    with kind(tmp_path, most=1) as rig:
        carrier = rig.carrier()
        extents = HeldExtents(carrier)
        with pytest.raises(NotEnoughMemory, match="raise"):
            extents.make(1)
        assert (rig.inodes(), carrier.behind, extents.arenas.allocated_bytes) == ({}, 0, 0)


def test_memory_that_cannot_be_mapped_is_forgotten(
    rig: CarrierRig, carrier: DescriptorCarrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The carrier made it, and drops it again with its table."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr("kvstore.storage.host.host_memory.map_memfd", refuse)
    extents = HeldExtents(carrier)
    with pytest.raises(NotEnoughMemory, match="the kernel refused"):
        extents.make(1)
    assert (rig.inodes(), carrier.behind, extents.arenas.allocated_bytes) == ({}, 0, 0)


def test_processes_are_kept(rig: CarrierRig, carrier: DescriptorCarrier) -> None:
    """A pidfd is deposited by its name, and forgotten."""
    held = HeldMemory(carrier)
    pidfd = os.pidfd_open(os.getpid())
    held.keep("process-1", pidfd)
    assert rig.inodes().keys() == {"process-1"}
    held.forget("process-1")
    assert rig.inodes() == {}
    os.close(pidfd)


def test_a_stopped_holder_delays_one_extent_and_loses_none(holder: HolderFolder) -> None:
    """Extents are made here while it does not answer, and deposited once it does."""
    with closing(owner_of(holder, SHORT)) as carrier:
        extents = HeldExtents(carrier)
        before = extents.make(1).extent_id
        os.kill(holder.pid, signal.SIGSTOP)
        made = [extents.make(1).extent_id for _ in range(2)]
        assert (carrier.is_lost(), carrier.behind) == (True, 6)
        extents.destroy(before)
        assert carrier.behind == 4
        os.kill(holder.pid, signal.SIGCONT)
        assert wait_until(carrier.restore)
        wanted = own_inodes(extents.arenas, made[0]) | own_inodes(extents.arenas, made[1])
        assert (carrier.behind, inodes_in(holder.path)) == (0, wanted)


def test_nobody_waits_for_an_extent_that_a_stopped_holder_makes(holder: HolderFolder) -> None:
    """Other extents are described, read and counted meanwhile, and metrics are read."""
    with closing(owner_of(holder)) as carrier, ThreadPoolExecutor(1) as threads:
        extents = HeldExtents(carrier)
        first = extents.make(1).extent_id
        os.kill(holder.pid, signal.SIGSTOP)
        making = threads.submit(extents.make, 1)
        assert wait_until(lambda: carrier.behind == 1)
        assert [each.shape.extent_id for each in extents.arenas.describe([first])] == [first]
        assert extents.arenas.read(first << 32) is not None
        assert extents.arenas.allocated_bytes == 2 * EXTENT
        assert not making.done()
        os.kill(holder.pid, signal.SIGCONT)
        assert data_name(making.result(LIMIT).extent_id) in inodes_in(holder.path)


def test_a_killed_holder_loses_nothing(tmp_path: Path) -> None:
    """Another one gets all extents, those that were made in between too."""
    folder = tmp_path / "holder"
    carrier = HolderClient(folder, start=lambda: start_holder(folder))
    carrier.own(1)
    with closing(carrier):
        extents = HeldExtents(carrier)
        first = extents.make(1).extent_id
        os.kill(HolderFolder(folder).pid, signal.SIGKILL)
        second = extents.make(1).extent_id
        assert carrier.behind == 4
        assert carrier.restore()
        wanted = own_inodes(extents.arenas, first) | own_inodes(extents.arenas, second)
        assert (carrier.behind, inodes_in(folder)) == (0, wanted)
        carrier.end()


def test_who_does_not_own_makes_nothing(holder: HolderFolder) -> None:
    """Its extents are refused, and what it destroys is only closed."""
    with closing(owner_of(holder)) as carrier:
        extents = HeldExtents(carrier)
        extent_id = extents.make(1).extent_id
        carrier.give_up(1)
        with pytest.raises(NotEnoughMemory, match="does not own"):
            extents.make(1)
        with capture_logs() as lines:
            extents.destroy(extent_id)
        assert [line["event"] for line in lines] == ["deposits_not_dropped"]
        assert inodes_in(holder.path).keys() == {data_name(extent_id), table_name(extent_id)}
