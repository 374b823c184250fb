"""Spare slots: offsets that are taken, named in inserts, and filled again."""

from collections.abc import Iterator

import pytest

from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore_client import GroupInsert, PageRef, Reservation, SpareSlots, errors
from kvstore_client.calls.deadlines import StoreBudget
from kvstore_client.lifecycle.session import OpenedNamespace
from kvstore_client.pages.held_pages import Hold
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.values.page_runs import Pages
from wire.scripted_session import ABORTED, RELEASED, ScriptedSession, run_of
from wire.scripted_store import ScriptedCalls, refusal

SPACE = OpenedNamespace(b"space", 1, 4)
PAGE = b"\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0"


class Spare:
    """Three spare slots under id 5, in the slots 2, 0 and 1."""

    def __init__(self, attached: ScriptedSession) -> None:
        self.attached = attached
        self.slots = SpareSlots(self.hold(5), SPACE, Pages([run_of(2, 0, 1)]))
        self.reservation = self.new(7)

    def hold(self, name: int) -> Hold:
        """Returns the hold of a reservation."""
        with self.attached.session.request():
            return Hold(self.attached.session, reservation_ids=(name,))

    def new(self, name: int, space: OpenedNamespace = SPACE) -> Reservation:
        """Returns a reservation without slots."""
        return Reservation(self.hold(name), space, 0, Pages(), StoreBudget(30.0))

    def answer_refill(self, *slots: int) -> None:
        """Answers the next refill with these slots."""
        grant = pb.ReservationGrant(reservation_id=5, runs=[run_of(*slots)])
        self.attached.calls.answer("ReservePages", pb.ReservePagesResponse(grants=[grant]))

    def answer_insert(self, **published: list[int]) -> None:
        """Answers the next insert with the positions of groups ``g1`` and so on."""
        groups = [
            pb.GroupInserted(group=int(name[1:]), published_positions=each)
            for name, each in published.items()
        ]
        self.attached.calls.answer("InsertPrefix", pb.InsertPrefixResponse(groups=groups))

    def inserted(self) -> pb.InsertPrefixRequest:
        """Returns the last insert's request."""
        return pb.InsertPrefixRequest.FromString(self.attached.calls.requests["InsertPrefix"][-1])


@pytest.fixture
def spare(scripted: ScriptedCalls, runtime_dir: RuntimeDir) -> Iterator[Spare]:
    """Provides spare slots and a reservation, and aborts them afterwards."""
    attached = ScriptedSession(runtime_dir, scripted)
    scripted.answer("ReleasePins", *[RELEASED] * 9)
    scripted.answer("AbortReservation", *[ABORTED] * 9)
    attached.open()
    made = Spare(attached)
    yield made
    made.reservation.abort()
    made.slots.abort()
    attached.close()


def test_offsets_are_taken_once(spare: Spare) -> None:
    """All or none are taken, and those that were put back can be taken again."""
    slots = spare.slots
    assert slots.take(4) == []
    assert slots.take(2) == [0, 1]
    assert [slots.page(each) for each in (0, 1)] == [PageRef(3, 2), PageRef(3, 0)]
    assert slots.take(2) == []
    slots.put_back([1])
    assert (slots.take(1), slots.take(1), slots.take(1)) == ([1], [2], [])
    assert (slots.page_count, slots.free_count, slots.named_count) == (3, 0, 0)


def test_an_insert_names_offsets_with_checksums(spare: Spare) -> None:
    """Its slots become the reservation's, and the groups that were published are known."""
    spare.slots.take(3)
    spare.answer_insert(g1=[0], g2=[])
    groups = [GroupInsert(1, [0], [2]), GroupInsert(2, [0], [1])]
    spare.reservation.insert(
        PAGE, position=0, spare=spare.slots, slot_offsets=[0], group_pages=groups
    )
    request = spare.inserted()
    assert (request.slots_reservation_id, list(request.slot_offsets)) == (5, [0])
    named = [(e.group, list(e.page_positions), list(e.slot_offsets)) for e in request.group_pages]
    assert named == [(1, [0], [2]), (2, [0], [1])]
    assert len(request.page_checksums) == 1
    assert [len(each.page_checksums) for each in request.group_pages] == [1, 1]
    assert spare.reservation.pages == [PageRef(3, 2)]
    assert spare.reservation.published_groups == {1: {0}, 2: set()}
    spare.slots.put_back([0, 1])
    assert (spare.slots.free_count, spare.slots.named_count) == (0, 3)
    spare.answer_insert()
    spare.reservation.insert(PAGE, position=0)
    assert not spare.inserted().slot_offsets


def test_a_refill_frees_what_moved(spare: Spare) -> None:
    """An offset with another slot is free; one with the same slot may move yet."""
    spare.slots.take(3)
    spare.answer_insert()
    spare.reservation.insert(PAGE * 2, position=0, spare=spare.slots, slot_offsets=[0, 1])
    spare.answer_refill(3, 0, 1)
    assert spare.slots.refill() == 1
    assert spare.slots.take(1) == [0]
    assert spare.slots.page(0) == PageRef(3, 3)
    assert spare.slots.named_count == 1


def test_slots_of_a_failed_insert_come_back_after_an_abort(spare: Spare) -> None:
    """As long as its reservation is open, a late copy of the call may still move them."""
    [offset] = spare.slots.take(1)
    spare.attached.calls.answer("InsertPrefix", refusal("PARENT_DETACHED", page_position="0"))
    with pytest.raises(errors.ParentDetached):
        spare.reservation.insert(PAGE, position=0, spare=spare.slots, slot_offsets=[offset])
    assert spare.reservation.pages == []
    spare.answer_refill(2, 0, 1)
    assert spare.slots.refill() == 2
    spare.reservation.abort()
    spare.answer_refill(2, 0, 1)
    assert spare.slots.refill() == 3


def test_offsets_are_refused_without_a_call(spare: Spare) -> None:
    """Offsets need spare slots of the same namespace, and each is named once."""
    spare.slots.take(2)
    other = spare.new(8, SPACE._replace(namespace_id=b"other"))
    with pytest.raises(ValueError, match="another namespace"):
        other.insert(PAGE, position=0, spare=spare.slots, slot_offsets=[0])
    with pytest.raises(ValueError, match="only spare slots"):
        spare.reservation.insert(PAGE, position=0, slot_offsets=[0])
    with pytest.raises(ValueError, match="named twice"):
        spare.reservation.insert(PAGE * 2, position=0, spare=spare.slots, slot_offsets=[0, 0])
    spare.answer_insert()
    spare.reservation.insert(PAGE, position=0, spare=spare.slots, slot_offsets=[0])
    with pytest.raises(ValueError, match="named one of these"):
        spare.reservation.insert(PAGE, position=4, spare=spare.slots, slot_offsets=[0])
    other.abort()
    with spare.slots:
        pass
    for call in (spare.slots.refill, lambda: spare.slots.take(1), lambda: spare.slots.runs([1])):
        with pytest.raises(ValueError, match="were aborted"):
            call()
