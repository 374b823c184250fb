"""Giving back over a lane, without waiting, and what becomes of what a lane loses."""

from collections.abc import Iterator

import pytest
from google.rpc.status_pb2 import Status

from kvstore.v1 import lease_pb2, prefix_cache_pb2
from kvstore_client.calls.deadlines import Deadline
from kvstore_client.calls.lane import Lane
from kvstore_client.calls.pool import LanePool
from kvstore_client.lifecycle.release_sender import MOST_LATER
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.lifecycle import release_sender
from kvstore_client.testing import wait_until
from wire.scripted_lanes import HANG_UP, METHOD, ScriptedLanes
from wire.scripted_store import ScriptedCalls, refusal
from wire.sending import Sending, pins_released

RELEASED = prefix_cache_pb2.ReleasePinsResponse()
REVOKED = lease_pb2.RevokeLeaseResponse()


@pytest.fixture
def lane(runtime_dir: RuntimeDir, sending: Sending) -> Iterator[ScriptedLanes]:
    """A scripted lane that the sender's calls may take, idle."""
    store = ScriptedLanes(runtime_dir.attach_socket)

    def opening(timeout: float) -> Lane:
        lane = Lane(runtime_dir.attach_socket)
        lane.open("test", b"lease", b"secret", Deadline(timeout + 30))
        return lane

    # By a clock that stands still: lanes that broke rest for good.
    lanes = LanePool(opening, clock=lambda: 0.0)
    sending.calls.use_lanes(lanes)
    store.answer(b"")
    assert lanes.call(METHOD, [b""], 30) == b""
    store.calls.clear()
    assert store.came.acquire(timeout=30)
    yield store
    lanes.close()
    store.close()


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the sender's thread leave lanes, and what waits, to whoever asks for them."""
    monkeypatch.setattr(release_sender, "LOOK", 3600.0)


def pins_posted(lane: ScriptedLanes) -> list[list[int]]:
    """Returns the pins of each release that came over a lane."""
    requests = [prefix_cache_pb2.ReleasePinsRequest.FromString(body) for _, body in lane.calls]
    return [list(each.pin_ids) for each in requests]


@pytest.mark.usefixtures("unwatched")
def test_a_release_goes_over_a_lane_and_nobody_waits(
    scripted: ScriptedCalls, sending: Sending, lane: ScriptedLanes
) -> None:
    """It is sent before it returns, and answered when somebody read the answer."""
    sending.sender.give_back(pin_ids=[1])
    sending.sender.give_back(pin_ids=[2])
    assert lane.came.acquire(timeout=30)
    assert not sending.sender.flush(0)
    assert sending.sender.settle(0, lambda: False)
    lane.answer(b"")
    assert not sending.sender.flush(0.05)
    lane.answer(b"")
    assert sending.sender.flush(30)
    assert pins_posted(lane) == [[1], [2]]
    assert scripted.requests == {}


def test_answers_on_a_lane_are_read_where_nobody_asks(
    sending: Sending, lane: ScriptedLanes
) -> None:
    """The sender looks for them, and no longer than there are some."""
    for pin_id in (1, 2):
        lane.answer(b"")
        sending.sender.give_back(pin_ids=[pin_id])
        assert wait_until(lambda: not sending.sender._open)
        assert wait_until(lambda: not sending.sender._watching)


@pytest.mark.parametrize("what", [HANG_UP, Status.FromString(refusal("LEASE_NOT_FOUND"))])
def test_a_release_that_a_lane_lost_is_repeated(
    scripted: ScriptedCalls, sending: Sending, lane: ScriptedLanes, what: object
) -> None:
    """Over gRPC, where no lane is left; one that was refused comes again too."""
    lane.answer(what, b"")
    scripted.answer("ReleasePins", RELEASED)
    sending.sender.give_back(pin_ids=[1])
    assert sending.sender.flush(30)
    assert [*pins_posted(lane), *pins_released(scripted)] == [[1], [1]]


def test_more_than_a_batch_goes_by_the_thread(sending: Sending, lane: ScriptedLanes) -> None:
    """In parts that the store takes."""
    lane.answer(b"", b"")
    sending.sender.give_back(pin_ids=[1, 2, 3])
    assert sending.sender.flush(30)
    assert pins_posted(lane) == [[1, 2], [3]]


def test_the_lease_goes_after_what_lanes_have(
    scripted: ScriptedCalls, sending: Sending, lane: ScriptedLanes
) -> None:
    """What one of them lost is repeated before."""
    scripted.answer("RevokeLease", REVOKED)
    scripted.answer("ReleasePins", RELEASED)
    sending.sender.give_back(pin_ids=[1])
    sending.sender.finish()
    assert not sending.sender.join(0.05)
    assert scripted.requests == {}
    lane.answer(HANG_UP)
    assert sending.sender.join(30)
    assert pins_released(scripted) == [[1]]
    assert len(scripted.requests["RevokeLease"]) == 1
    assert sending.sender.flush(0)


def test_nothing_is_posted_once_abandoned(sending: Sending, lane: ScriptedLanes) -> None:
    """Its store is gone, or this process goes."""
    sending.sender.abandon()
    sending.sender.give_back(pin_ids=[1])
    assert not sending.sender.flush(0)
    assert lane.calls == []


@pytest.mark.usefixtures("unwatched")
def test_reservations_without_slots_are_ended_together(
    sending: Sending, lane: ScriptedLanes
) -> None:
    """Of some, in one call; nobody who reserves waits for them, and who flushes does."""
    lane.answer(*[b""] * 20)
    for reservation_id in range(1, MOST_LATER):
        sending.sender.give_back(slotless_ids=[reservation_id])
    assert sending.sender.settle(0, lambda: False)
    assert lane.calls == []
    sending.sender.give_back(slotless_ids=[MOST_LATER])
    assert sending.sender.flush(30)
    # A batch of the sender's has two.
    ends = [prefix_cache_pb2.AbortReservationRequest.FromString(body) for _, body in lane.calls]
    ended = [each_id for each in ends for each_id in each.reservation_ids]
    assert ended == list(range(1, MOST_LATER + 1))
    sending.sender.give_back(slotless_ids=[100])
    assert sending.sender.flush(30)
    assert len(lane.calls) == len(ends) + 1


def test_a_reservation_without_slots_is_ended_where_none_follows(
    sending: Sending, lane: ScriptedLanes
) -> None:
    """Before long, or before the lease is."""
    lane.answer(b"")
    sending.sender.give_back(slotless_ids=[1])
    assert wait_until(lambda: not sending.sender._open)
    assert len(lane.calls) == 1
