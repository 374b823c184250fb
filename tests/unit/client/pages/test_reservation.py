"""A reservation's calls, and the errors that it raises without a call."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from xxhash import xxh3_64_intdigest

from device.card import Card, ClientCuda
from kvstore.v1 import prefix_cache_pb2, types_pb2
from kvstore_client import ReuseHint, errors
from kvstore_client.calls.deadlines import StoreBudget
from kvstore_client.lifecycle.session import OpenedNamespace
from kvstore_client.memory.cuda.cuda_extent import CudaExtent
from kvstore_client.memory.cuda.mapped_memory import CudaMemory
from kvstore_client.memory.mapped_extent import checksums_of
from kvstore_client.pages.held_pages import Hold
from kvstore_client.pages.match import Match
from kvstore_client.pages.reservation import Reservation, grow_reservations
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.values.page_runs import PageRef, Pages
from wire.scripted_session import ABORTED, RELEASED, ScriptedSession, run_of
from wire.scripted_store import ScriptedCalls, refusal

PACKED = b"\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0"
SLOT_BYTES = 64
# Pages of four tokens; the reservation's pages 2, 3 and 4 are in the slots 3, 1 and 0.
START, SLOTS = 2, (3, 1, 0)


class Held:
    """A reservation of one page, number 2 of its sequence, under id 7."""

    def __init__(self, attached: ScriptedSession) -> None:
        self.attached = attached
        self.events: list[str] = []
        self.reservation = self.reserved(7, 1)

    def reserved(self, name: int, slot: int, space: bytes = b"space") -> Reservation:
        """Returns a reservation of one slot, number 2 of its sequence, in a namespace."""
        pages = Pages([run_of(slot)])
        with self.attached.session.request():
            hold = Hold(self.attached.session, reservation_ids=(name,))
        return Reservation(hold, OpenedNamespace(space, 1, 4), 2, pages, StoreBudget(30.0))

    def answer_growths(self, **slots: list[int]) -> None:
        """Answers the next call with these slots for the reservations ``r7`` and so on."""
        grants = [
            prefix_cache_pb2.ReservationGrant(reservation_id=int(name[1:]), runs=[run_of(*each)])
            for name, each in slots.items()
        ]
        response = prefix_cache_pb2.ReservePagesResponse(grants=grants)
        self.attached.calls.answer("ReservePages", response)

    def answer_insert(self) -> None:
        """Answers the next insert with a page of another worker."""
        response = prefix_cache_pb2.InsertPrefixResponse(runs=[run_of(0)])
        self.attached.calls.answer("InsertPrefix", response)

    def inserted(self) -> prefix_cache_pb2.InsertPrefixRequest:
        """Returns the last insert request."""
        data = self.attached.calls.requests["InsertPrefix"][-1]
        return prefix_cache_pb2.InsertPrefixRequest.FromString(data)


@pytest.fixture
def held(scripted: ScriptedCalls, runtime_dir: RuntimeDir) -> Iterator[Held]:
    """Provides a reservation, and aborts it afterwards."""
    attached = ScriptedSession(
        runtime_dir, scripted, wait_for_device=lambda: held.events.append("waited")
    )
    scripted.answer("ReleasePins", *[RELEASED] * 9)
    scripted.answer("AbortReservation", *[ABORTED] * 9)
    attached.open()
    held = Held(attached)
    yield held
    held.reservation.abort()
    attached.close()


def test_a_reservation_says_what_it_has(held: Held) -> None:
    """A reservation has its id, its first page and its slots in page order."""
    reservation = held.reservation
    assert (reservation.reservation_id, reservation.start_page) == (7, 2)
    assert (reservation.pages, reservation.page_count) == ([PageRef(3, 1)], 1)


def test_growing_asks_for_a_total(held: Held) -> None:
    """Growing asks for a total of pages and replaces the list of pages."""
    grant = prefix_cache_pb2.ReservationGrant(reservation_id=7, runs=[run_of(1, 2)])
    response = prefix_cache_pb2.ReservePagesResponse(grants=[grant])
    held.attached.calls.answer("ReservePages", response, refusal("POOL_EXHAUSTED"))
    assert held.reservation.grow(2) == [PageRef(3, 1), PageRef(3, 2)]
    (data,) = held.attached.calls.requests["ReservePages"]
    (asked,) = prefix_cache_pb2.ReservePagesRequest.FromString(data).reservations
    assert (asked.reservation_id, asked.start_page, asked.page_count) == (7, 2, 2)
    with pytest.raises(errors.PoolExhausted):
        held.reservation.grow(3)
    assert held.reservation.page_count == 2


def test_several_grow_in_one_call(held: Held) -> None:
    """Several reservations grow in one call. A refusal leaves all as they were."""
    with held.reserved(8, 0) as other:
        held.answer_growths(r7=[1, 2], r8=[0, 3])
        held.attached.calls.answer("ReservePages", refusal("POOL_EXHAUSTED"))
        grow_reservations([(held.reservation, 2), (other, 2)])
        assert held.reservation.pages == [PageRef(3, 1), PageRef(3, 2)]
        assert other.pages == [PageRef(3, 0), PageRef(3, 3)]
        with pytest.raises(errors.PoolExhausted):
            grow_reservations([(held.reservation, 3), (other, 3)])
        assert (held.reservation.page_count, other.page_count) == (2, 2)
        first, second = held.attached.calls.requests["ReservePages"]
        asked = prefix_cache_pb2.ReservePagesRequest.FromString(first).reservations
        assert [(each.reservation_id, each.page_count) for each in asked] == [(7, 2), (8, 2)]
        assert len(prefix_cache_pb2.ReservePagesRequest.FromString(second).reservations) == 2


def test_one_call_is_of_one_namespace(held: Held) -> None:
    """Growing reservations of two namespaces, or an aborted one, is refused without a call."""
    other = held.reserved(8, 0, b"other")
    with other, pytest.raises(ValueError, match="one namespace"):
        grow_reservations([(held.reservation, 2), (other, 2)])
    with held.reserved(9, 0) as ended:
        pass
    with pytest.raises(ValueError, match="9 was aborted"):
        grow_reservations([(held.reservation, 2), (ended, 2)])
    assert "ReservePages" not in held.attached.calls.requests


def test_a_slot_that_was_given_away_stops_its_own_growth(held: Held) -> None:
    """A recycled slot stops the growth of its own reservation. The others grow."""
    with held.reserved(8, 0) as other:
        held.attached.recycle(1)
        held.answer_growths(r7=[1, 2], r8=[0, 3])
        with pytest.raises(errors.PageRecycled) as caught:
            grow_reservations([(held.reservation, 2), (other, 2)])
        assert caught.value.pages == (PageRef(3, 1),)
        assert (held.reservation.page_count, other.page_count) == (1, 2)


def test_an_insert_waits_for_the_device_first(held: Held) -> None:
    """An insert waits for the device before it sends its pages, and returns the index's pages."""
    held.answer_insert()
    assert held.reservation.insert([1, 2, 3, 4], position=8) == ([PageRef(3, 0)], 0)
    assert held.events == ["waited"]
    assert held.inserted().sequence == prefix_cache_pb2.Sequence(tokens=PACKED, position=8)


def test_an_insert_names_what_holds_the_pages_before(held: Held) -> None:
    """An insert's base is a match's pin, a reservation, or nothing after a miss."""
    with held.attached.session.request():
        match = Match(Hold(held.attached.session, pin_ids=(5,)), [PageRef(3, 0)], 4)
    for base in (match, held.reservation, Match()):
        held.answer_insert()
        held.reservation.insert(PACKED, position=8, base=base)
        sequence = held.inserted().sequence
        assert (sequence.base_pin_id, sequence.base_reservation_id) == (
            5 if base is match else 0,
            7 if base is held.reservation else 0,
        )
    match.release()


def test_an_insert_that_is_refused_changes_nothing_here(held: Held) -> None:
    """A refused insert raises its reason, and the reservation can still insert."""
    held.attached.calls.answer("InsertPrefix", refusal("PARENT_DETACHED", page_position="2"))
    with pytest.raises(errors.ParentDetached):
        held.reservation.insert(PACKED, position=8)
    held.answer_insert()
    held.reservation.insert(PACKED, position=8)


def test_an_aborted_reservation_asks_nothing(held: Held) -> None:
    """An aborted reservation neither grows nor inserts, because its slots may be another's."""
    with held.reservation:
        pass
    with pytest.raises(ValueError, match="7 was aborted"):
        held.reservation.grow(2)
    with pytest.raises(ValueError, match="7 was aborted"):
        held.reservation.insert(PACKED, position=8)
    assert held.attached.session.flush(30)
    assert len(held.attached.calls.requests["AbortReservation"]) == 1


def test_an_ended_session_inserts_nothing(held: Held) -> None:
    """An ended session publishes nothing."""
    held.attached.session.end(errors.StaleEpoch("restarted"))
    with pytest.raises(errors.StoreUnavailable):
        held.reservation.insert(PACKED, position=8)
    assert "InsertPrefix" not in held.attached.calls.requests


class Reserved:
    """A reservation of three pages, whose slots hold their own number in every byte."""

    def __init__(self, calls: ScriptedCalls, attached: ScriptedSession) -> None:
        self._calls = calls
        session = attached.open()
        extent = session.extents.get(3)
        assert extent is not None
        for slot in SLOTS:
            extent.slot(slot)[:] = bytes([slot]) * SLOT_BYTES
        with session.request():
            hold = Hold(session, reservation_ids=(7,))
        namespace = OpenedNamespace(b"space", 1, 4)
        pages = Pages([run_of(*SLOTS)])
        self.reservation = Reservation(hold, namespace, START, pages, StoreBudget(30.0))

    def insert(self, position: int, token_count: int) -> list[int]:
        """Inserts so many tokens and returns the checksums that were sent."""
        self._calls.answer("InsertPrefix", prefix_cache_pb2.InsertPrefixResponse())
        self.reservation.insert(list(range(token_count)), position=position)
        data = self._calls.requests["InsertPrefix"][-1]
        return list(prefix_cache_pb2.InsertPrefixRequest.FromString(data).page_checksums)


Make = Callable[..., Reserved]


@pytest.fixture
def reserved(scripted: ScriptedCalls, runtime_dir: RuntimeDir) -> Iterator[Make]:
    """Makes a reservation under a configuration, and aborts it afterwards."""
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
    """Returns the checksum of a whole slot."""
    return xxh3_64_intdigest(bytes([slot]) * SLOT_BYTES)


def test_an_insert_says_what_each_page_comes_to(reserved: Make) -> None:
    """An insert sends the checksum of each whole slot in prefix order, also of a partial page."""
    made = reserved()
    assert made.insert(8, 10) == [of(3), of(1), of(0)]


def test_a_page_is_looked_at_once(reserved: Make) -> None:
    """An inserted page is immutable, so later inserts send no checksum for it."""
    made = reserved()
    assert made.insert(8, 4) == [of(3)]
    assert made.insert(8, 8) == [0, of(1)]
    assert made.insert(16, 4) == [of(0)]
    assert made.insert(8, 8) == []


def test_an_insert_of_others_pages_says_nothing(reserved: Make) -> None:
    """An insert of pages outside the reservation sends no checksums. The store refuses it."""
    made = reserved()
    assert made.insert(4, 8) == []
    assert made.insert(8, 20) == []


def test_checksums_can_be_switched_off(reserved: Make) -> None:
    """A worker may switch checksums off."""
    assert reserved(page_checksums=False).insert(8, 8) == []


class OnDevice:
    """A session's extents: one extent in the memory of a device."""

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
    """The content of a device's page is a copy of its slot."""
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
    """Device pages have checksums only on request. Unmapped pages have none."""
    extents = {3: OnDevice().mapped}
    pages = [PageRef(3, 1), PageRef(4, 0)]
    expected = [of(9), 0] if sent else []
    assert checksums_of(extents.get, pages, wanted=wanted) == expected


def test_a_hint_says_what_is_known_and_no_more() -> None:
    """A hint's message has the fields that are known and no others."""
    assert ReuseHint().message() == types_pb2.ReuseHint()
    assert ReuseHint("continues", 2.5, -3).message() == types_pb2.ReuseHint(
        expected_reuse=types_pb2.EXPECTED_REUSE_CONTINUES, horizon_ms=2500, priority=-3
    )
    message = ReuseHint("one_shot").message()
    assert message.expected_reuse == types_pb2.EXPECTED_REUSE_ONE_SHOT


@pytest.mark.parametrize("wrong", ["oneshot", "continue", "", True])
def test_a_hint_that_there_is_not_is_refused(wrong: Any) -> None:  # noqa: ANN401
    """An unknown hint is refused, because it would be lost without notice."""
    with pytest.raises(ValueError, match="'continues' or 'one_shot'"):
        ReuseHint(wrong).message()


@pytest.mark.parametrize("horizon", [0.0, 0.0001])
def test_a_short_horizon_is_not_none(horizon: float) -> None:
    """A very short horizon is rounded up to 1 ms, because 0 means no horizon."""
    assert ReuseHint("continues", horizon).message().horizon_ms == 1
