"""Extents of a former process: put back as they were, or refused."""

import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from threading import Event

import pytest
from structlog.testing import capture_logs

from device.card import Card, ServerCuda
from kvstore.holder.holder_process import REQUIRED_SEALS
from kvstore.storage.arenas import OFFSET_UNIT, Arenas
from kvstore.storage.cuda import registration
from kvstore.storage.cuda.cupy_runtime import address_of
from kvstore.storage.cuda.device_copier import CudaCopier
from kvstore.storage.cuda.device_memory import CudaDevice
from kvstore.storage.errors import BudgetExhausted, ExtentUnusable
from kvstore.storage.generation_table import opened_again
from kvstore.storage.host.host_memory import HostMemory
from kvstore_client.testing import wait_until

SLOT = mmap.PAGESIZE
COUNT = 4
SIZE, BUDGET = COUNT * SLOT, 4 * COUNT * SLOT
# Of the arena that tests use.
ARENA = 5


def arenas_of(source: HostMemory, extent_bytes: int = SIZE) -> Arenas:
    """Returns a budget of four extents."""
    return Arenas(budget_bytes=BUDGET, extent_bytes=extent_bytes, source=source)


@pytest.fixture
def former() -> Iterator[Arenas]:
    """Provides the extents of the former process, in this one."""
    with closing(arenas_of(HostMemory())) as made:
        yield made


@pytest.fixture
def arenas() -> Iterator[Arenas]:
    """Provides those of its successor."""
    with closing(arenas_of(HostMemory())) as made:
        yield made


def descriptors(former: Arenas, extent_id: int) -> tuple[int, int]:
    """Returns what a carrier would have of an extent: its memory, and its table."""
    [described] = former.describe([extent_id])
    assert described.generation_table is not None
    return os.dup(described.export.descriptor), os.dup(described.generation_table.descriptor)


def memfd(
    size: int, seals: int = REQUIRED_SEALS, mode: int = 0o600, name: str = "kvstore-generations-1"
) -> int:
    """Returns a memfd of a size, with seals and a mode."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.fchmod(descriptor, mode)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def is_open(descriptor: int) -> bool:
    """Returns whether a descriptor is open."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_bytes_and_generations_go_on(former: Arenas, arenas: Arenas) -> None:
    """Both processes' mappings are the same memory, so every reader sees what is written next."""
    extent = former.allocate(ARENA, SLOT)
    slot = extent.shape.extent_id << 32 | 2
    former.poison([slot])
    extent.generation_table.view[2] = 41
    restored = arenas.restore(extent.shape, *descriptors(former, extent.shape.extent_id))
    assert bytes(arenas.read(slot) or b"") == bytes(former.read(slot) or b"")
    assert list(restored.generation_table.view) == [0, 0, 41, 0]
    restored.generation_table.view[2] += 1
    assert extent.generation_table.view[2] == 42
    place = arenas.place(slot)
    assert isinstance(place, memoryview)
    place[:4] = b"next"
    assert bytes(former.read(slot) or b"")[:4] == b"next"


def test_a_restored_extent_is_one_of_the_others(former: Arenas, arenas: Arenas) -> None:
    """Workers get it by descriptors of their own kinds, and it counts until it is destroyed."""
    shape = former.allocate(ARENA, SLOT).shape
    data, table = descriptors(former, shape.extent_id)
    restored = arenas.restore(shape, data, table)
    assert restored.describe().shape == shape
    assert (arenas.allocated_bytes, arenas.describe([shape.extent_id])) == (
        SIZE,
        [restored.describe()],
    )
    exported = restored.generation_table.describe()
    assert (exported.descriptor, exported.size_bytes) == (table, COUNT * 8)
    with pytest.raises(PermissionError):
        mmap.mmap(exported.descriptor, 0)
    arenas.destroy(shape.extent_id)
    assert arenas.allocated_bytes == 0
    assert not any(map(is_open, (data, table)))


def test_later_extents_lie_beside_it(former: Arenas) -> None:
    """Also if extents have another size now than when it was made."""
    former.allocate(ARENA, SLOT)
    shapes = [former.allocate(ARENA, SLOT).shape for _ in range(2)]
    assert [each.arena_offset for each in shapes] == [OFFSET_UNIT, 2 * OFFSET_UNIT]
    larger = OFFSET_UNIT + SLOT
    sizes = Arenas(
        budget_bytes=1 << 30,
        extent_bytes=larger,
        source=HostMemory(),
        extent_ids=iter(range(100, 200)),
    )
    with closing(sizes) as arenas:
        for each in shapes:
            arenas.restore(each, *descriptors(former, each.extent_id))
        made = [arenas.allocate(ARENA, SLOT).shape for _ in range(2)]
        assert [each.arena_offset for each in made] == [4 * OFFSET_UNIT, 6 * OFFSET_UNIT]
        arenas.destroy(shapes[1].extent_id)
        arenas.destroy(shapes[0].extent_id)
        assert arenas.allocate(ARENA, SLOT).shape.arena_offset == 0


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: memfd(SIZE + 1), f"has {SIZE + 1} bytes"),
        (lambda: memfd(SIZE, fcntl.F_SEAL_SEAL), "the seals 0x1"),
        (lambda: os.pidfd_open(os.getpid()), "is no memfd"),
        (lambda: opened_again(memfd(SIZE, name="extent-1.data"), os.O_RDONLY), "cannot be mapped"),
        (lambda: memfd(SIZE, name="extent-2.data"), r"is /memfd:extent-2.data \(deleted\)"),
    ],
)
def test_other_memory_is_refused(
    former: Arenas, arenas: Arenas, make: Callable[[], int], reason: str
) -> None:
    """The reason is named, both descriptors are closed, and the budget is as before."""
    shape = former.allocate(ARENA, SLOT).shape
    data, table = make(), descriptors(former, shape.extent_id)[1]
    with pytest.raises(ExtentUnusable, match=reason):
        arenas.restore(shape, data, table)
    assert not any(map(is_open, (data, table)))
    assert arenas.allocated_bytes == 0
    assert arenas.allocate(ARENA, SLOT).shape.arena_offset == 0


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: memfd(COUNT * 8), "workers could write it"),
        (lambda: opened_again(memfd(COUNT * 8, mode=0o644), os.O_RDONLY), "mode 644"),
        (lambda: opened_again(memfd(COUNT * 8 + 8), os.O_RDONLY), "has 40 bytes"),
        (
            lambda: opened_again(
                memfd(COUNT * 8, REQUIRED_SEALS | fcntl.F_SEAL_WRITE), os.O_RDONLY
            ),
            "cannot be mapped",
        ),
        (
            lambda: opened_again(memfd(COUNT * 8, name="kvstore-generations-2"), os.O_RDONLY),
            "is /memfd:kvstore-generations-2",
        ),
    ],
)
def test_a_table_that_others_can_write_is_refused(
    former: Arenas, arenas: Arenas, make: Callable[[], int], reason: str
) -> None:
    """Tables of another size, or that this process cannot write, are refused as well."""
    shape = former.allocate(ARENA, SLOT).shape
    data, table = descriptors(former, shape.extent_id)[0], make()
    with pytest.raises(ExtentUnusable, match=reason):
        arenas.restore(shape, data, table)
    assert not any(map(is_open, (data, table)))
    assert arenas.allocated_bytes == 0


def test_extents_do_not_overlap(former: Arenas, arenas: Arenas) -> None:
    """Rows that name one id or one place twice are not what the former process wrote."""
    shape, second = (former.allocate(ARENA, SLOT).shape for _ in range(2))
    arenas.restore(shape, *descriptors(former, shape.extent_id))
    for other in (
        shape._replace(arena_offset=1 << 30),
        second._replace(arena_offset=SIZE - SLOT),
    ):
        with pytest.raises(ExtentUnusable, match="overlaps"):
            arenas.restore(other, *descriptors(former, other.extent_id))
    beside = second._replace(arena_offset=SIZE)
    arenas.restore(beside, *descriptors(former, second.extent_id))
    assert arenas.allocated_bytes == 2 * SIZE


def test_a_budget_that_is_too_small_is_refused(former: Arenas) -> None:
    """With both numbers; nothing is mapped."""
    shape = former.allocate(ARENA, SLOT).shape
    small = Arenas(budget_bytes=SIZE - 1, extent_bytes=SIZE, source=HostMemory())
    with closing(small), pytest.raises(BudgetExhausted) as refused:
        small.restore(shape, *descriptors(former, shape.extent_id))
    assert (refused.value.requested_bytes, refused.value.available_bytes) == (SIZE, SIZE - 1)
    assert small.allocated_bytes == 0


def test_memory_of_a_device_is_not_restored(former: Arenas) -> None:
    """It ended with the process that made it, and nothing of it is deposited."""
    shape = former.allocate(ARENA, SLOT).shape
    card = Card()
    with closing(CudaDevice(0, lambda: ServerCuda(card))) as device:
        assert not device.held.outlives
        arenas = Arenas(budget_bytes=card.size_bytes, extent_bytes=SIZE, source=device)
        with closing(arenas), pytest.raises(ExtentUnusable, match="memory of cuda:0"):
            arenas.restore(shape, *descriptors(former, shape.extent_id))


def test_it_is_registered_again_in_the_background(
    former: Arenas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extent is used meanwhile, every piece is registered once, and all are undone."""
    monkeypatch.setattr(registration, "PIECE_BYTES", 2 * SLOT)
    shape = former.allocate(ARENA, SLOT).shape
    card, go_on = Card(), Event()
    copier = CudaCopier(0, ServerCuda(card))

    def register(memory: memoryview) -> Callable[[], None]:
        assert go_on.wait(30)
        return copier.register(memory)

    with closing(arenas_of(HostMemory(register=register))) as arenas:
        restored = arenas.restore(shape, *descriptors(former, shape.extent_id))
        assert bytes(restored.memory.read(0) or b"") == bytes(SLOT)
        assert card.registered == {}
        go_on.set()
        assert wait_until(lambda: len(card.registered) == SIZE // (2 * SLOT))
        page = arenas.place(shape.extent_id << 32)
        assert isinstance(page, memoryview)
        assert min(card.registered) == address_of(page)
        del page
        arenas.destroy(shape.extent_id)
        assert card.registered == {}
    copier.close()


def test_a_refused_registration_is_logged(former: Arenas) -> None:
    """The extent is used without; the log has its size, once."""
    shape = former.allocate(ARENA, SLOT).shape
    card = Card()
    card.fail = "register"
    copier = CudaCopier(0, ServerCuda(card))
    with (
        capture_logs() as lines,
        closing(arenas_of(HostMemory(register=copier.register))) as arenas,
    ):
        restored = arenas.restore(shape, *descriptors(former, shape.extent_id))
        assert wait_until(lambda: lines)
        assert [(line["event"], line["size_bytes"]) for line in lines] == [
            ("host_memory_not_registered", SIZE)
        ]
        assert restored.memory.read(0) is not None
    copier.close()
