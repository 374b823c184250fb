"""What an insert tells the store of its pages' bytes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from xxhash import xxh3_64_intdigest

from device.card import Card, ClientCuda
from kvstore.v1 import prefix_cache_pb2, types_pb2
from kvstore_client.calls.deadlines import StoreBudget
from kvstore_client.hold import Hold
from kvstore_client.lifecycle.session import OpenedNamespace
from kvstore_client.memory.cuda.extent import CudaExtent
from kvstore_client.memory.cuda.memory import CudaMemory
from kvstore_client.memory.mapped_extent import checksums_of
from kvstore_client.pages import PageRef
from kvstore_client.reservation import Reservation
from kvstore_client.runtime_dir import RuntimeDir
from wire.scripted_session import ABORTED, ScriptedSession, run_of
from wire.scripted_store import ScriptedCalls

SLOT_BYTES = 64
# Pages of four tokens; the reservation's pages 2, 3 and 4 are in the slots 3, 1 and 0.
START, SLOTS = 2, (3, 1, 0)


class Reserved:
    """A reservation of three pages, whose slots hold their own number in every byte."""

    def __init__(self, calls: ScriptedCalls, attached: ScriptedSession) -> None:
        self._calls = calls
        session = attached.open()
        extent = session.extents.get(3)
        assert extent is not None
        for slot in SLOTS:
            extent.slot(slot)[:] = bytes([slot]) * SLOT_BYTES
        runs = [run_of(*SLOTS)]
        grant = prefix_cache_pb2.ReservationGrant(reservation_id=7, start_page=START, runs=runs)
        with session.request():
            hold = Hold(session, reservation_ids=(7,))
        namespace = OpenedNamespace(b"space", 1, 4)
        self.reservation = Reservation(hold, namespace, grant, StoreBudget(30.0))

    def insert(self, position: int, token_count: int) -> list[int]:
        """Inserts so many tokens and returns the checksums that were sent."""
        self._calls.answer("InsertPrefix", prefix_cache_pb2.InsertPrefixResponse())
        self.reservation.insert(list(range(token_count)), position=position)
        data = self._calls.requests["InsertPrefix"][-1]
        return list(prefix_cache_pb2.InsertPrefixRequest.FromString(data).page_checksums)


Make = Callable[..., Reserved]


@pytest.fixture
def reserved(scripted: ScriptedCalls, runtime_dir: RuntimeDir) -> Iterator[Make]:
    """Makes a reservation under a configuration; it is aborted afterwards."""
    with ExitStack() as stack:

        def make(**settings: bool) -> Reserved:
            attached = ScriptedSession(runtime_dir, scripted, **settings)
            stack.callback(attached.close)
            scripted.answer("AbortReservation", ABORTED)
            made = Reserved(scripted, attached)
            stack.callback(attached.session.extents.give_up)
            stack.callback(made.reservation.abort)
            return made

        yield make


def of(slot: int) -> int:
    """Returns what a whole slot comes to."""
    return xxh3_64_intdigest(bytes([slot]) * SLOT_BYTES)


def test_an_insert_says_what_each_page_comes_to(reserved: Make) -> None:
    """In prefix order, of the whole slot, a partial page's too."""
    made = reserved()
    assert made.insert(8, 10) == [of(3), of(1), of(0)]


def test_a_page_is_looked_at_once(reserved: Make) -> None:
    """What an insert was answered for is immutable: later ones have no checksum for it."""
    made = reserved()
    assert made.insert(8, 4) == [of(3)]
    assert made.insert(8, 8) == [0, of(1)]
    assert made.insert(16, 4) == [of(0)]
    assert made.insert(8, 8) == []


def test_an_insert_of_others_pages_says_nothing(reserved: Make) -> None:
    """Pages before or beyond the reservation are the store's to refuse."""
    made = reserved()
    assert made.insert(4, 8) == []
    assert made.insert(8, 20) == []


def test_checksums_can_be_switched_off(reserved: Make) -> None:
    """A worker that does not want them sends none."""
    assert reserved(page_checksums=False).insert(8, 8) == []


class OnDevice:
    """A session's extents: one, in the memory of a device."""

    def __init__(self) -> None:
        self.card = Card()
        address = self.card.malloc(SLOT_BYTES * 2)
        assert address is not None
        handle = types_pb2.CudaIpcHandle(
            ipc_handle=self.card.handle(address), device_uuid=self.card.uuid, size_bytes=128
        )
        extent = types_pb2.Extent(
            extent_id=3, arena_id=1, slot_count=2, slot_bytes=SLOT_BYTES, cuda_ipc=handle
        )
        self.mapped = CudaExtent(extent, 5, None, CudaMemory(lambda: ClientCuda(self.card)))
        self.card.memory[address][SLOT_BYTES:] = [9] * SLOT_BYTES


def test_a_device_s_page_is_copied_to_be_looked_at() -> None:
    """Its content is that of its slot, and no view that keeps the memory."""
    device = OnDevice()
    content = device.mapped.content(1)
    assert bytes(content) == bytes([9]) * SLOT_BYTES
    for index in (-1, 2):
        with pytest.raises(IndexError):
            device.mapped.content(index)


@pytest.mark.parametrize(("wanted", "sent"), [(None, False), (False, False), (True, True)])
def test_pages_on_a_device_have_checksums_where_that_is_wanted(
    *, wanted: bool | None, sent: bool
) -> None:
    """By default they are not copied for it; what is not mapped has none."""
    extents = {3: OnDevice().mapped}
    pages = [PageRef(3, 1), PageRef(4, 0)]
    expected = [of(9), 0] if sent else []
    assert checksums_of(extents.get, pages, wanted=wanted) == expected
