"""A device whose whole budget is allocated at the start, and extents that are made of it."""

from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest
from structlog.testing import capture_logs

from device.card import Card, ServerCuda
from kvstore.storage.arenas import Arenas, Extent
from kvstore.storage.cuda.device_memory import GRANULARITY, CudaDevice
from kvstore.storage.errors import BudgetExhausted, CudaFailed, DeviceUnavailable, NotEnoughMemory

# The budget; the card has twice as much.
BUDGET = 8 * GRANULARITY
PIECE = 2 * GRANULARITY


@pytest.fixture
def card() -> Card:
    """A device of 32 MiB."""
    return Card(2 * BUDGET)


@pytest.fixture
def device(card: Card) -> Iterator[CudaDevice]:
    """The device, of which half is reserved in four pieces."""
    with closing(CudaDevice(0, lambda: ServerCuda(card))) as device:
        device.reserve(BUDGET, PIECE, lambda: pytest.fail("no need to wait"))
        yield device


@pytest.fixture
def arenas(device: CudaDevice) -> Iterator[Arenas]:
    """The budget, in extents as large as the pieces."""
    with closing(Arenas(budget_bytes=BUDGET, extent_bytes=PIECE, source=device)) as arenas:
        yield arenas


def taken(card: Card) -> int:
    """Returns the bytes that the server has of the device."""
    return card.size_bytes - card.available_bytes


def test_the_whole_budget_is_allocated_at_the_start(card: Card, device: CudaDevice) -> None:
    """In pieces of an extent each; a budget that is no whole number of them ends in a smaller."""
    assert [len(each) for each in card.memory.values()] == [PIECE] * 4
    device.close()
    assert card.memory == {}
    with closing(CudaDevice(0, lambda: ServerCuda(card))) as other:
        other.reserve(BUDGET - 5, PIECE + GRANULARITY - 1, lambda: False)
        sizes = [len(each) for each in card.memory.values()]
        assert sizes == [PIECE + GRANULARITY, PIECE + GRANULARITY, GRANULARITY]


def test_no_other_program_takes_what_the_store_needs_later(card: Card, arenas: Arenas) -> None:
    """Another program takes all of the rest, and the store still grows to its budget."""
    other = card.malloc(card.available_bytes)
    assert other is not None
    # Slots of an odd size, so that no extent has the size of a piece.
    sizes = [arenas.allocate(1, GRANULARITY // 2 + 1).shape.size_bytes for _ in range(4)]
    assert len(sizes) == 4
    with pytest.raises(BudgetExhausted):
        arenas.allocate(1, PIECE)
    assert card.available_bytes == 0


def test_the_store_has_its_budget_at_any_time(card: Card, arenas: Arenas) -> None:
    """As extents of any size come and go, their bytes and the reserve's are the budget."""
    extents: list[Extent] = []
    for slot_bytes in (GRANULARITY, 3 * GRANULARITY, 100, GRANULARITY // 2):
        extents.append(arenas.allocate(1, slot_bytes))
        assert taken(card) == BUDGET
    for extent in extents:
        arenas.destroy(extent.shape.extent_id)
        assert (taken(card), arenas.budget_bytes) == (BUDGET, BUDGET)
    assert arenas.allocate(1, BUDGET).shape.size_bytes == BUDGET
    assert taken(card) == BUDGET


def test_a_piece_of_the_right_size_becomes_the_extent(card: Card, arenas: Arenas) -> None:
    """The reserve frees nothing for it, so no program can interfere; it is cleared as any other."""
    before = set(card.memory)
    card.calls.clear()
    arenas.allocate(1, GRANULARITY)
    assert (set(card.memory), card.calls) == (before, ["fill", "export"])
    assert sorted(map(any, card.memory.values())) == [False, True, True, True]


def test_an_exported_allocation_is_never_another_extent(card: Card, arenas: Arenas) -> None:
    """A process with its handle could map the next tenant's pages by it."""
    first = arenas.allocate(1, GRANULARITY)
    handle = first.describe().export.ipc_handle  # type: ignore[union-attr]  # of a device
    (address,) = (each for each in card.memory if card.handle(each) == handle)
    card.calls.clear()
    arenas.destroy(first.shape.extent_id)
    assert card.calls == ["give_back", "allocate"], f"{address} is freed"


def test_memory_that_is_lost_in_between_is_a_refusal(
    card: Card, arenas: Arenas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reserve allocates the rest of the device, and the whole budget once there is more."""
    filler = card.malloc(card.available_bytes)
    assert filler is not None
    give_back, thieves = ServerCuda.give_back, []

    def lose(self: ServerCuda, address: int) -> None:
        give_back(self, address)
        thieves.append(card.malloc(GRANULARITY))

    extent = arenas.allocate(1, GRANULARITY)
    monkeypatch.setattr(ServerCuda, "give_back", lose)
    with capture_logs() as lines, pytest.raises(NotEnoughMemory, match="cuda:0 refused"):
        arenas.allocate(1, 3 * GRANULARITY)
    assert [each["missing_bytes"] for each in lines] == [2 * GRANULARITY]
    assert lines[0]["event"] == "device_reserve_short"
    assert card.available_bytes == 0, "nothing that was left is left to others"
    monkeypatch.undo()
    for thief in thieves:
        assert thief is not None
        del card.memory[thief]
    arenas.destroy(extent.shape.extent_id)
    assert taken(card) - len(card.memory[filler]) == BUDGET
    assert arenas.allocate(1, BUDGET).shape.size_bytes == BUDGET


def test_a_reserve_that_is_short_is_not_freed_for_what_it_cannot_hold(
    card: Card, arenas: Arenas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An arena asks each second: the rest would be anybody's as often, and the log would grow."""
    give_back = ServerCuda.give_back
    thieves: list[int | None] = []

    def lose(self: ServerCuda, address: int) -> None:
        give_back(self, address)
        thieves.append(card.malloc(card.available_bytes))

    monkeypatch.setattr(ServerCuda, "give_back", lose)
    with pytest.raises(NotEnoughMemory):
        arenas.allocate(1, PIECE + GRANULARITY)
    monkeypatch.undo()
    card.calls.clear()
    with capture_logs() as lines:
        for _ in range(2):
            with pytest.raises(NotEnoughMemory) as refused:
                arenas.allocate(1, BUDGET)
    assert "give_back" not in card.calls
    assert lines == []
    left = refused.value.available_bytes
    assert 0 < left < BUDGET
    # Once the other program gives its memory back, it is there for the store.
    for thief in filter(None, thieves):
        del card.memory[thief]
    assert arenas.allocate(1, BUDGET).shape.size_bytes == BUDGET


def test_a_budget_that_is_not_there_is_waited_for(card: Card) -> None:
    """All of it or nothing, even if the device has room and refuses; then the server says so."""
    taker = card.malloc(card.size_bytes)
    assert taker is not None
    with closing(CudaDevice(0, lambda: ServerCuda(card))) as device:

        def pause() -> bool:
            if card.fail:
                card.fail = ""
            elif taker in card.memory:
                del card.memory[taker]
                card.fail = "allocate"
            return True

        with capture_logs() as lines:
            device.reserve(BUDGET, PIECE, pause)
        events = [line["event"] for line in lines]
        assert events == ["device_memory_awaited", "device_memory_refused"]
        assert taken(card) == BUDGET
    with closing(CudaDevice(0, lambda: ServerCuda(card))) as device:
        with pytest.raises(DeviceUnavailable, match=f"tier1_bytes is {4 * BUDGET}"):
            device.reserve(4 * BUDGET, PIECE, lambda: pytest.fail("no use to wait"))
        assert card.memory == {}


def test_a_budget_that_the_device_refuses_is_an_error_with_its_reason(card: Card) -> None:
    """The device reports enough free memory and refuses all the same, which is logged once."""
    card.fail = "allocate"
    pauses = iter([True, True, False])
    with closing(CudaDevice(0, lambda: ServerCuda(card))) as device, capture_logs() as lines:
        with pytest.raises(DeviceUnavailable, match=r"left of \d+ \(allocate: refused\): set less"):
            device.reserve(BUDGET, PIECE, lambda: next(pauses))
        events = [line["event"] for line in lines]
        assert events == ["device_memory_refused", "device_memory_awaited"]


def test_a_part_of_the_budget_is_given_back(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the server waits for the rest, other programs can use the free memory."""
    allocate, numbers = ServerCuda.allocate, count(1)

    def refuse_third(self: ServerCuda, size_bytes: int) -> int:
        if next(numbers) == 3:
            raise CudaFailed("allocate: out of memory")
        return allocate(self, size_bytes)

    monkeypatch.setattr(ServerCuda, "allocate", refuse_third)
    seen: list[int] = []

    def pause() -> bool:
        seen.append(taken(card))
        return True

    with closing(CudaDevice(0, lambda: ServerCuda(card))) as device:
        device.reserve(BUDGET, PIECE, pause)
        assert (seen, taken(card)) == ([0], BUDGET)


def test_a_device_that_takes_nothing_back_keeps_the_reserve(card: Card) -> None:
    """The log says so at the server's end; an extent that needs the memory is refused."""
    with closing(CudaDevice(0, lambda: ServerCuda(card))) as device:
        device.reserve(BUDGET, PIECE, lambda: False)
        arenas = Arenas(budget_bytes=BUDGET, extent_bytes=BUDGET, source=device)
        card.fail = "give_back"
        with pytest.raises(NotEnoughMemory) as refused:
            arenas.allocate(1, BUDGET)
        assert refused.value.available_bytes == card.size_bytes
        assert (taken(card), arenas.allocated_bytes) == (BUDGET, 0)
        with capture_logs() as lines:
            device.close()
        assert [line["event"] for line in lines] == ["device_reserve_kept"]
