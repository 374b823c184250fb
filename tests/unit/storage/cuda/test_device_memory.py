"""A device's memory as extents, on a device that is memory of this process."""

import ctypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import enumerate as enumerate_threads
from threading import get_ident

import pytest
from structlog.testing import capture_logs

from device.card import DIRT, UUID, Card, ServerCuda
from kvstore.storage.arenas import Arenas
from kvstore.storage.cuda.device_memory import GRANULARITY, CudaDevice
from kvstore.storage.errors import BudgetExhausted, DeviceUnavailable, NotEnoughMemory
from kvstore.storage.extent import CudaIpcExport, ExtentShape

SHAPE = ExtentShape(extent_id=3, arena_id=2, tier=1, slot_count=5, slot_bytes=1000)


@pytest.fixture
def card() -> Card:
    """A device of 16 MiB."""
    return Card(8 * GRANULARITY)


@pytest.fixture
def device(card: Card) -> Iterator[CudaDevice]:
    """The device as a source of extents."""
    with closing(CudaDevice(0, lambda: ServerCuda(card))) as device:
        yield device


def test_an_extent_is_an_allocation_of_its_own(card: Card, device: CudaDevice) -> None:
    """An extent's memory is whole pages of the driver's, zero, and described by handle and UUID."""
    extent = device.allocate(SHAPE)
    ((address, memory),) = card.memory.items()
    assert len(memory) == GRANULARITY
    assert bytes(memory) == bytes(GRANULARITY)
    described = extent.describe()
    assert (described.shape, described.offset) == (SHAPE, 0)
    assert described.export == CudaIpcExport(card.handle(address), UUID, GRANULARITY)


def test_the_stand_in_s_memory_is_dirty_until_it_is_cleared(card: Card) -> None:
    """The zeros of the test above are not the stand-in's own."""
    address = card.malloc(100)
    assert address is not None
    assert ctypes.string_at(address, 100) == bytes([DIRT]) * 100


def test_one_thread_calls_cuda(card: Card, device: CudaDevice) -> None:
    """The one thread with the context makes every call, for all threads that allocate and close."""
    with ThreadPoolExecutor(3) as pool:
        extents = list(pool.map(lambda _: device.allocate(SHAPE), range(3)))
    for extent in extents:
        extent.close()
    assert card.memory == {}
    assert len(card.threads) == 1
    assert get_ident() not in card.threads


def test_a_closed_extent_is_given_back_unless_somebody_may_map_it(
    card: Card, device: CudaDevice
) -> None:
    """An undescribed extent is freed, once. A described one stays until the process ends."""
    unknown, known = device.allocate(SHAPE), device.allocate(SHAPE)
    known.describe()
    for extent in (unknown, unknown, known):
        extent.close()
    assert card.calls.count("give_back") == 1
    assert len(card.memory) == 1
    assert known.describe().export.size_bytes == GRANULARITY


def test_a_destroyed_extent_s_memory_is_the_budget_s_again(card: Card, device: CudaDevice) -> None:
    """An extent that every process unmapped goes back to the device, described or not."""
    arenas = Arenas(budget_bytes=card.size_bytes, extent_bytes=card.size_bytes, source=device)
    for _ in range(3):
        extent = arenas.allocate(1, GRANULARITY)
        assert extent.describe().shape.size_bytes == card.size_bytes
        arenas.destroy(extent.shape.extent_id)
        assert (arenas.allocated_bytes, card.available_bytes) == (0, card.size_bytes)


def test_what_the_device_does_not_take_back_stays_out_of_the_budget(
    card: Card, device: CudaDevice
) -> None:
    """Nobody is promised memory that is not there."""
    arenas = Arenas(budget_bytes=card.size_bytes, extent_bytes=GRANULARITY, source=device)
    extent = arenas.allocate(1, GRANULARITY)
    card.fail = "give_back"
    with capture_logs() as logs:
        arenas.destroy(extent.shape.extent_id)
    assert [each["event"] for each in logs].count("device_memory_kept") == 1
    assert arenas.allocated_bytes == GRANULARITY


def test_slots_are_read_and_filled_where_they_lie(card: Card, device: CudaDevice) -> None:
    """A slot is copied to the host, by the one thread with the context, until it is closed."""
    extent = device.allocate(SHAPE)
    extent.fill(3, 0xDB)
    pages = [extent.read(index) for index in range(SHAPE.slot_count)]
    assert [bytes(each) for each in pages if each is not None] == [
        bytes([0xDB if index == 3 else 0]) * SHAPE.slot_bytes for index in range(SHAPE.slot_count)
    ]
    assert get_ident() not in card.threads
    extent.close()
    extent.fill(3, 0)
    assert extent.read(3) is None


def test_a_full_device_refuses_with_its_numbers(card: Card, device: CudaDevice) -> None:
    """An allocation that CUDA refuses says what was wanted and what there is."""
    device.allocate(SHAPE)
    with pytest.raises(NotEnoughMemory, match="cuda:0 refused") as refused:
        device.allocate(SHAPE._replace(slot_bytes=GRANULARITY, slot_count=8))
    assert refused.value.requested_bytes == 8 * GRANULARITY
    assert refused.value.available_bytes == 7 * GRANULARITY == card.available_bytes


@pytest.mark.parametrize("call", ["fill", "export"])
def test_memory_that_cannot_be_exported_is_given_back(
    card: Card, device: CudaDevice, call: str
) -> None:
    """An extent is there as a whole or not at all."""
    card.fail = call
    with pytest.raises(NotEnoughMemory, match=call):
        device.allocate(SHAPE)
    assert card.memory == {}


def test_a_refusal_without_numbers_is_a_refusal(card: Card, device: CudaDevice) -> None:
    """A device that answers nothing any more has nothing left, by what we know."""
    card.fail = "room"
    with pytest.raises(NotEnoughMemory) as refused:
        device.allocate(SHAPE._replace(slot_count=1 << 20))
    assert refused.value.available_bytes == 0
    with pytest.raises(DeviceUnavailable, match="cuda:0 cannot be used"):
        device.require(1, lambda: True)


def test_memory_that_is_not_taken_back_is_logged(card: Card, device: CudaDevice) -> None:
    """A device that fails as the server ends does not keep it from ending."""
    extent = device.allocate(SHAPE)
    card.fail = "give_back"
    with capture_logs() as lines:
        extent.close()
    assert [line["event"] for line in lines].count("device_memory_kept") == 1


def test_a_device_answers_until_it_fails(card: Card, device: CudaDevice) -> None:
    """One call of CUDA, on the thread with the context; a failure is logged."""
    threads = set(card.threads)
    card.calls.clear()
    assert device.answers()
    assert (card.calls, card.threads) == (["synchronize"], threads)
    card.fail = "synchronize"
    with capture_logs() as lines:
        assert not device.answers()
    assert [line["event"] for line in lines] == ["device_does_not_answer"]


def test_a_budget_that_is_left_is_not_waited_for(card: Card, device: CudaDevice) -> None:
    """With enough room the server starts at once."""
    device.require(card.size_bytes, lambda: pytest.fail("no need to wait"))


def test_a_budget_is_waited_for_until_the_device_has_room(card: Card, device: CudaDevice) -> None:
    """Memory that workers of an earlier store still have is waited for, and logged once."""
    taken = [device.allocate(SHAPE), device.allocate(SHAPE)]

    def pause() -> bool:
        taken.pop().close()
        return True

    with capture_logs() as lines:
        device.require(card.size_bytes, pause)
    assert taken == []
    assert [line["event"] for line in lines].count("device_memory_awaited") == 1


def test_a_budget_that_is_never_left_is_refused(card: Card, device: CudaDevice) -> None:
    """After the last pause the error has the numbers; beyond the device's size there is none."""
    device.allocate(SHAPE)
    pauses = iter([True, False])
    with pytest.raises(DeviceUnavailable, match=rf"{card.size_bytes}.*{card.available_bytes}"):
        device.require(card.size_bytes, lambda: next(pauses))
    assert list(pauses) == []
    with pytest.raises(DeviceUnavailable, match=rf"{card.size_bytes + 1}, and cuda:0"):
        device.require(card.size_bytes + 1, lambda: pytest.fail("no use to wait"))


def test_a_device_that_cannot_be_selected_leaves_no_thread(card: Card) -> None:
    """An error of loading or selecting is raised, and its thread has ended."""
    runtime = ServerCuda(card)

    def missing() -> ServerCuda:
        raise DeviceUnavailable("no cupy")

    with pytest.raises(DeviceUnavailable, match="no cupy"):
        CudaDevice(0, missing)
    with pytest.raises(AssertionError):
        CudaDevice(1, lambda: runtime)
    card.fail = "make_stream"
    with pytest.raises(DeviceUnavailable, match="cuda:0 cannot be used: make_stream"):
        CudaDevice(0, lambda: runtime)
    assert not [each for each in enumerate_threads() if each.name.startswith("kvstore-cuda")]


def test_the_budget_counts_what_the_driver_takes(card: Card, device: CudaDevice) -> None:
    """Each extent takes whole pages of the driver's out of the budget."""
    budget = 3 * GRANULARITY + 5
    sizes = Arenas(budget_bytes=budget, extent_bytes=GRANULARITY + 1, source=device)
    with closing(sizes) as arenas:
        assert arenas.budget_bytes == 3 * GRANULARITY
        first = arenas.allocate(1, GRANULARITY // 2 + 1)
        assert (first.shape.slot_count, arenas.allocated_bytes) == (1, GRANULARITY)
        second = arenas.allocate(1, GRANULARITY + 1)
        assert (second.shape.slot_count, arenas.allocated_bytes) == (1, 3 * GRANULARITY)
        assert card.available_bytes == 5 * GRANULARITY
        with pytest.raises(BudgetExhausted):
            arenas.allocate(1, 1)
    assert (arenas.allocated_bytes, card.memory) == (0, {})
