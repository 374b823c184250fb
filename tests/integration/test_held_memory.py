"""Extents in a holder's process, which outlive the processes that made them."""

import mmap
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from device.card import Card, ServerCuda
from kvstore.holder.holder_client import HolderClient, HolderConnection, start_holder
from kvstore.holder.holder_process import RESERVE, close_all
from kvstore.storage.arenas import OFFSET_UNIT, Arenas
from kvstore.storage.cuda.device_copier import CudaCopier
from kvstore.storage.cuda.device_memory import GRANULARITY, CudaDevice
from kvstore.storage.errors import NotEnoughMemory
from kvstore.storage.held_memory import HeldMemory, data_name, table_name
from kvstore.storage.host.host_memory import HostMemory
from kvstore.storage.host.hugepages import Hugepages
from kvstore.storage.host.memfd import ENOUGH_THREADS
from kvstore_client.testing import wait_until
from processes.extent_worker import EXTENT, SLOT, HeldExtents, extent_worker
from processes.holder_folder import LIMIT, HolderFolder
from processes.resident_bytes import resident_bytes
from processes.worker_process import WorkerProcess

# Seconds without an answer after which a client counts a holder as lost.
SHORT = 0.2


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[HolderFolder]:
    """Provides a holder's process."""
    with HolderFolder(tmp_path / "holder") as started:
        yield started


def owner_of(holder: HolderFolder, **options: float) -> HolderClient:
    """Returns a carrier of this process, which owns."""
    client = HolderClient(holder.path, **options)
    client.own(1)
    return client


@pytest.fixture
def carrier(holder: HolderFolder) -> Iterator[HolderClient]:
    """Provides a carrier of this process, which owns."""
    with closing(owner_of(holder)) as made:
        yield made


def inodes(holder: HolderFolder) -> dict[str, int]:
    """Returns the inode of each descriptor that the holder has."""
    with closing(HolderConnection(holder.path)) as connection:
        found = dict(connection.descriptors())
    close_all(each.descriptor for each in found.values())
    return {name: each.identity.inode for name, each in found.items()}


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


def test_extents_outlive_the_process_that_made_them(holder: HolderFolder) -> None:
    """A successor has the bytes and generations of a killed process, and readers see its own."""
    with ExitStack() as stack:
        first = stack.enter_context(WorkerProcess("store", extent_worker, holder.path, 1))
        shapes = [first.ask("make", arena_id) for arena_id in (1, 1, 2)]
        extent_id = shapes[1].extent_id
        first.ask("write", extent_id, 2, b"page", 7)
        with closing(HolderConnection(holder.path)) as connection:
            found = dict(connection.descriptors())
        assert len(found) == 2 * len(shapes)
        # As a worker has them.
        table, data = (
            found[each].descriptor for each in (table_name(extent_id), data_name(extent_id))
        )
        generations = memoryview(mmap.mmap(table, 0, prot=mmap.PROT_READ)).cast("Q")
        page = memoryview(mmap.mmap(data, 0))[2 * SLOT : 3 * SLOT]
        close_all(each.descriptor for each in found.values())
        first.kill()
        second = stack.enter_context(WorkerProcess("successor", extent_worker, holder.path, 2))
        second.ask("restore", shapes)
        assert second.ask("contents", extent_id)[2] == (b"page", 7)
        assert [each for _, each in second.ask("contents", shapes[0].extent_id)] == [0] * 4
        second.ask("write", extent_id, 2, b"next", 8)
        assert (generations[2], bytes(page[:4])) == (8, b"next")
        # It takes the last of the budget.
        assert second.ask("make", 1).arena_offset == 2 * OFFSET_UNIT
        assert not second.ask("has_room")


def test_a_destroyed_extent_is_the_carrier_s_no_more(
    holder: HolderFolder, carrier: HolderClient
) -> None:
    """Closing all memory at the end of a process drops nothing."""
    extents = HeldExtents(carrier)
    one, other = extents.make(1).extent_id, extents.make(1).extent_id
    extents.destroy(one)
    assert inodes(holder).keys() == {data_name(other), table_name(other)}
    extents.arenas.close()
    assert inodes(holder).keys() == {data_name(other), table_name(other)}


def test_a_holder_makes_the_memory(carrier: HolderClient) -> None:
    """It is the holder's memfd; with several threads it is mapped before it is used."""
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
    holder: HolderFolder, carrier: HolderClient, options: dict[str, object]
) -> None:
    """A holder knows neither large pages nor a device."""
    with capture_logs():
        source = HostMemory(held=HeldMemory(carrier), threads=1, **options)  # type: ignore[arg-type]
    extents = HeldExtents(carrier, source)
    extent_id = extents.make(1).extent_id
    assert "kvstore-extent" in memfd_name(extents.arenas, extent_id)
    assert inodes(holder) == own_inodes(extents.arenas, extent_id)
    extents.destroy(extent_id)
    assert inodes(holder) == {}


def test_registered_memory_is_restored_and_registered_anew(holder: HolderFolder) -> None:
    """By the successor's own device, before it is destroyed."""
    with WorkerProcess("store", extent_worker, holder.path, 1) as first:
        shape = first.ask("make", 1)
        first.kill()
    card = Card()
    copier = CudaCopier(0, ServerCuda(card))
    with closing(copier), closing(owner_of(holder)) as carrier:
        source = HostMemory(register=copier.register, held=HeldMemory(carrier))
        extents = HeldExtents(carrier, source)
        extents.restore([shape])
        assert wait_until(lambda: sum(card.registered.values()) == EXTENT)
        extents.destroy(shape.extent_id)
        assert card.registered == {}


def test_memory_of_a_device_is_not_deposited(holder: HolderFolder, carrier: HolderClient) -> None:
    """Neither are its tables; host memory beside it is."""
    card = Card()
    with closing(CudaDevice(0, lambda: ServerCuda(card))) as device:
        upper = Arenas(budget_bytes=card.size_bytes, extent_bytes=GRANULARITY, source=device)
        with closing(upper):
            upper.allocate(1, SLOT)
            lower = HeldExtents(carrier)
            extent_id = lower.make(1).extent_id
            assert inodes(holder) == own_inodes(lower.arenas, extent_id)


def test_a_stopped_holder_delays_one_extent_and_loses_none(holder: HolderFolder) -> None:
    """Extents are made here while it does not answer, and deposited once it does."""
    with closing(owner_of(holder, answer_seconds=SHORT)) as carrier:
        extents = HeldExtents(carrier)
        before = extents.make(1).extent_id
        os.kill(holder.pid, signal.SIGSTOP)
        made = [extents.make(1).extent_id for _ in range(2)]
        assert (carrier.is_lost(), carrier.behind) == (True, 6)
        assert all("extent" in memfd_name(extents.arenas, each) for each in made)
        extents.destroy(before)
        assert carrier.behind == 4
        os.kill(holder.pid, signal.SIGCONT)
        assert wait_until(carrier.restore)
        wanted = own_inodes(extents.arenas, made[0]) | own_inodes(extents.arenas, made[1])
        assert (carrier.behind, inodes(holder)) == (0, wanted)


def test_nobody_waits_for_an_extent_that_a_stopped_holder_makes(
    holder: HolderFolder, carrier: HolderClient
) -> None:
    """Other extents are described, read and counted meanwhile."""
    extents = HeldExtents(carrier)
    first = extents.make(1).extent_id
    os.kill(holder.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        making = threads.submit(extents.make, 1)
        assert wait_until(lambda: extents.arenas.allocated_bytes == 2 * EXTENT)
        assert [each.shape.extent_id for each in extents.arenas.describe([first])] == [first]
        assert extents.arenas.read(first << 32) is not None
        assert extents.arenas.has_room(SLOT)
        assert not making.done()
        os.kill(holder.pid, signal.SIGCONT)
        assert data_name(making.result(LIMIT).extent_id) in inodes(holder)


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
        extents.write(second, 1, b"page", 3)
        assert carrier.behind == 4
        assert carrier.restore()
        wanted = own_inodes(extents.arenas, first) | own_inodes(extents.arenas, second)
        assert (carrier.behind, inodes(HolderFolder(folder))) == (0, wanted)
        carrier.end()


def test_a_refusal_is_one_of_memory(holder: HolderFolder, carrier: HolderClient) -> None:
    """The reason is the holder's, nothing is deposited or behind, and the budget is as before."""
    source = HostMemory(held=HeldMemory(carrier), threads=1)
    arenas = Arenas(budget_bytes=1 << 62, extent_bytes=1 << 61, source=source)
    with pytest.raises(NotEnoughMemory, match=r"extent-1\.data needs 2305843009213693952 bytes"):
        arenas.allocate(1, 1 << 61)
    assert (inodes(holder), carrier.behind, arenas.allocated_bytes) == ({}, 0, 0)


@pytest.mark.parametrize("most", [0, 1])
def test_a_full_holder_refuses_an_extent(tmp_path: Path, most: int) -> None:
    """Its table or its memory: none of both stays, and the reason says what to raise."""
    with ExitStack() as stack:
        holder = HolderFolder(tmp_path / "holder", "--descriptors", str(most))
        stack.callback(holder.__exit__)
        holder.start(f"ulimit -n {most + RESERVE};")
        carrier = stack.enter_context(closing(owner_of(holder)))
        extents = HeldExtents(carrier)
        with pytest.raises(NotEnoughMemory, match="raise the holder's hard limit of open files"):
            extents.make(1)
        assert (inodes(holder), carrier.behind, extents.arenas.allocated_bytes) == ({}, 0, 0)


def test_memory_that_cannot_be_mapped_is_forgotten(
    holder: HolderFolder, carrier: HolderClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder made it, and drops it again with its table."""

    def refuse(*_: object) -> None:
        raise OSError(12, "no memory")

    monkeypatch.setattr("kvstore.storage.host.host_memory.map_memfd", refuse)
    extents = HeldExtents(carrier)
    with pytest.raises(NotEnoughMemory, match="the kernel refused"):
        extents.make(1)
    assert (inodes(holder), carrier.behind, extents.arenas.allocated_bytes) == ({}, 0, 0)


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
        assert inodes(holder).keys() == {data_name(extent_id), table_name(extent_id)}


def test_processes_are_kept(holder: HolderFolder, carrier: HolderClient) -> None:
    """A pidfd is deposited by its name, and forgotten."""
    held = HeldMemory(carrier)
    pidfd = os.pidfd_open(os.getpid())
    held.keep("process-1", pidfd)
    assert inodes(holder).keys() == {"process-1"}
    held.forget("process-1")
    assert inodes(holder) == {}
    os.close(pidfd)
