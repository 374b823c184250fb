"""Pieces of an extent: registered in order, beside the filling, all of them or none."""

import errno
import os
from collections.abc import Callable
from mmap import PAGESIZE, mmap
from threading import Event, Thread

import pytest
from structlog.testing import capture_logs

from device.card import Card, ServerCuda
from kvstore.storage.cuda import registration
from kvstore.storage.cuda.cupy_runtime import address_of
from kvstore.storage.cuda.device_copier import CudaCopier
from kvstore.storage.cuda.registration import PIECE_BYTES, Registration, pieces
from kvstore.storage.errors import CudaFailed, NotEnoughMemory
from kvstore.storage.extent import ExtentShape
from kvstore.storage.host import host_memory
from kvstore.storage.host.host_memory import HostExtent
from kvstore_client.testing import wait_until
from processes.open_descriptors import open_descriptors

MIB, GIB = 1 << 20, 1 << 30
# Three pieces, the last one short.
SHAPE = ExtentShape(extent_id=707, arena_id=1, tier=2, slot_count=5, slot_bytes=PAGESIZE)
PIECE, SIZES = 2 * PAGESIZE, [2 * PAGESIZE, 2 * PAGESIZE, PAGESIZE]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of two pages of the kernel's."""
    monkeypatch.setattr(registration, "PIECE_BYTES", PIECE)


class Book:
    """A device that records its calls; ``refused`` is the number of the piece that fails."""

    def __init__(self, refused: int = -1, error: type[Exception] = CudaFailed) -> None:
        self.refused = refused
        self.error = error
        self.asked: list[int] = []
        self.undone: list[int] = []

    def register(self, memory: memoryview) -> Callable[[], None]:
        """Notes a piece by its number."""
        number = len(self.asked)
        self.asked.append(memory.nbytes)
        if number == self.refused:
            raise self.error("register: refused")
        return lambda: self.undone.append(number)


def test_pieces_are_registered_in_order_and_undone_from_the_last() -> None:
    """Each once, however often the extent is closed."""
    book = Book()
    extent = HostExtent.allocate(SHAPE, register=book.register)
    assert book.asked == SIZES
    assert book.undone == []
    extent.close()
    extent.close()
    assert book.undone == [2, 1, 0]


def filled_bytes() -> int:
    """Returns how many bytes of the extent's memfd are allocated."""
    numbers = open_descriptors(f"memfd:kvstore-extent-{SHAPE.extent_id}")
    return max(os.fstat(int(each)).st_blocks * 512 for each in numbers)


def test_the_next_pieces_are_filled_while_one_is_registered() -> None:
    """The first registration does not end before all memory is there."""
    seen: list[bool] = []

    def register(memory: memoryview) -> Callable[[], None]:
        seen.append(memory.nbytes > 0 and wait_until(lambda: filled_bytes() == SHAPE.size_bytes))
        return lambda: None

    HostExtent.allocate(SHAPE, register=register).close()
    assert seen == [True] * 3


@pytest.mark.parametrize("refused", range(3))
def test_where_one_is_refused_none_stays_registered(refused: int) -> None:
    """The log has it once, with the size of all pieces; the memory is used as it is."""
    book = Book(refused)
    with capture_logs() as lines:
        extent = HostExtent.allocate(SHAPE, register=book.register)
    assert [(line["event"], line["size_bytes"]) for line in lines] == [
        ("host_memory_not_registered", SHAPE.size_bytes)
    ]
    assert book.asked == SIZES[: refused + 1]
    assert book.undone == list(reversed(range(refused)))
    extent.fill(4, 7)
    assert bytes(extent.read(4) or b"") == bytes([7]) * PAGESIZE
    extent.close()
    assert book.undone == list(reversed(range(refused)))


@pytest.mark.parametrize("refused", range(3))
def test_an_error_that_nobody_foresaw_leaves_nothing(refused: int) -> None:
    """The error is raised, and no registration and no descriptor stays."""
    book = Book(refused, ValueError)
    before = open_descriptors("memfd:")
    with pytest.raises(ValueError, match="refused"):
        HostExtent.allocate(SHAPE, register=book.register)
    assert sorted(book.undone) == [n for n in range(len(book.asked)) if n != refused]
    assert open_descriptors("memfd:") <= before


def test_undoing_waits_for_the_piece_under_way_and_begins_no_other() -> None:
    """The pieces registered by then are undone."""
    begun, go_on, undone = Event(), Event(), list[int]()

    def register(memory: memoryview) -> Callable[[], None]:
        begun.set()
        assert go_on.wait(30)
        size = memory.nbytes
        return lambda: undone.append(size)

    under_way = Registration(register)
    under_way.begin(memoryview(bytearray(1)))
    assert begun.wait(30)
    under_way.begin(memoryview(bytearray(2)))
    undoing = Thread(target=under_way.undo)
    undoing.start()
    assert wait_until(under_way._begun[1].cancelled)
    assert undone == []
    go_on.set()
    undoing.join()
    assert undone == [1]


def test_memory_that_cannot_be_filled_leaves_no_registration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pieces before are undone, and the error is that of the memory."""
    book, fill = Book(), host_memory.fill

    def fill_some(descriptor: int, mapping: mmap, start: int, size: int, threads: int) -> None:
        if start == 2 * PIECE:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        fill(descriptor, mapping, start, size, threads)

    monkeypatch.setattr(host_memory, "fill", fill_some)
    before = open_descriptors("memfd:")
    with pytest.raises(NotEnoughMemory, match="kernel refused"):
        HostExtent.allocate(SHAPE, register=book.register)
    assert sorted(book.undone, reverse=True) == book.undone == [*reversed(range(len(book.asked)))]
    assert open_descriptors("memfd:") <= before


def test_cuda_is_called_once_a_piece_and_each_is_undone() -> None:
    """Each by the address that registered it."""
    card = Card()
    copier = CudaCopier(0, ServerCuda(card))
    memory = memoryview(bytearray(5 * PAGESIZE))
    undo = copier.register(memory)
    assert card.registered == {address_of(memory): memory.nbytes}
    with pytest.raises(CudaFailed, match="already registered"):
        copier.register(memory)
    undo()
    assert card.registered == {}
    copier.close()


@pytest.mark.parametrize(
    ("size", "slot", "wanted"),
    [
        (1000 * 400, 1000, [1000 * 400]),
        (PIECE_BYTES, 2 * MIB, [PIECE_BYTES]),
        (5 * GIB // 4, 2 * MIB, [512 * MIB, 512 * MIB, 256 * MIB]),
        (600 * MIB, 3 * MIB, [510 * MIB, 90 * MIB]),
        # Slots that end with a page of the kernel's only after more than a piece.
        (8193 * (MIB + 1), MIB + 1, [4096 * (MIB + 1)] * 2 + [MIB + 1]),
    ],
)
def test_pieces_end_between_slots_and_pages(
    monkeypatch: pytest.MonkeyPatch, size: int, slot: int, wanted: list[int]
) -> None:
    """CUDA refuses copies that span two registrations, so none may."""
    monkeypatch.undo()
    found = pieces(size, slot)
    assert found == wanted
    assert sum(found) == size
    assert all(each % slot == each % PAGESIZE == 0 for each in found[:-1])
