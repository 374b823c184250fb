"""The sender of releases in the background, against a scripted store that fails."""

from collections.abc import Iterator
from threading import Event

import grpc
import pytest
from google.rpc.status_pb2 import Status

from kvstore.v1 import lease_pb2, prefix_cache_pb2
from kvstore_client.calls.deadlines import Backoff, Deadline
from kvstore_client.calls.grpc_channel import StoreCalls
from kvstore_client.calls.lane import Lane
from kvstore_client.calls.lane_pool import LanePool
from kvstore_client.calls.lease_calls import LeaseCalls
from kvstore_client.lifecycle import release_sender
from kvstore_client.lifecycle.release_sender import MOST_LATER, ReleaseSender
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.testing import wait_until
from wire.scripted_lanes import HANG_UP, METHOD, ScriptedLanes
from wire.scripted_store import ScriptedCalls, refusal
from wire.sending import Sending, pins_released

RELEASED = prefix_cache_pb2.ReleasePinsResponse()
ABORTED = prefix_cache_pb2.AbortReservationResponse()
REVOKED = lease_pb2.RevokeLeaseResponse()


def reservations_aborted(scripted: ScriptedCalls) -> list[list[int]]:
    """Returns the reservation ids of each abort call."""
    requests = map(
        prefix_cache_pb2.AbortReservationRequest.FromString,
        scripted.requests.get("AbortReservation", []),
    )
    return [list(request.reservation_ids) for request in requests]


def test_what_is_given_back_arrives(scripted: ScriptedCalls, sending: Sending) -> None:
    """Pins and reservations that are released together are sent, each kind in its own call."""
    scripted.answer("ReleasePins", RELEASED)
    scripted.answer("AbortReservation", ABORTED)
    sending.sender.give_back(pin_ids=[1], reservation_ids=[2])
    assert sending.sender.flush(30)
    assert (pins_released(scripted), reservations_aborted(scripted)) == ([[1]], [[2]])


def test_nothing_is_not_sent(scripted: ScriptedCalls, sending: Sending) -> None:
    """Releasing nothing makes no call, and a flush returns at once."""
    sending.sender.give_back()
    assert sending.sender.flush(0)
    assert scripted.requests == {}


def test_what_waits_is_sent_in_order_in_batches(scripted: ScriptedCalls, sending: Sending) -> None:
    """Releases that gather during a call are sent in order, in batches."""
    slow = Event()
    scripted.answer("ReleasePins", slow, RELEASED, RELEASED, RELEASED)
    sending.sender.give_back(pin_ids=[1])
    assert scripted.came.wait(30)
    for pin_id in (2, 3, 4):
        sending.sender.give_back(pin_ids=[pin_id])
    assert not sending.sender.flush(0)
    slow.set()
    assert sending.sender.flush(30)
    assert pins_released(scripted) == [[1], [2, 3], [4]]


def test_a_release_is_repeated_until_it_is_answered(
    scripted: ScriptedCalls, sending: Sending
) -> None:
    """A release without an answer is repeated until it is answered."""
    scripted.answer("ReleasePins", grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, RELEASED)
    sending.sender.give_back(pin_ids=[1])
    assert sending.sender.flush(30)
    assert pins_released(scripted) == [[1]] * 3


def test_a_release_that_is_refused_is_over(scripted: ScriptedCalls, sending: Sending) -> None:
    """A release that is refused for good is not repeated."""
    scripted.answer("ReleasePins", refusal("STALE_EPOCH"))
    sending.sender.give_back(pin_ids=[1])
    assert sending.sender.flush(30)
    assert pins_released(scripted) == [[1]]


def test_a_release_that_came_too_late_is_repeated(
    scripted: ScriptedCalls, sending: Sending
) -> None:
    """A release that reached the store after its deadline is repeated."""
    too_late = refusal("INVALID_FIELD", field="deadline", value="passed")
    scripted.answer("ReleasePins", too_late, RELEASED)
    sending.sender.give_back(pin_ids=[1])
    assert sending.sender.flush(30)
    assert pins_released(scripted) == [[1]] * 2


def test_a_release_that_is_refused_for_now_is_repeated(
    scripted: ScriptedCalls, sending: Sending
) -> None:
    """A release that is refused for now is repeated after the given delay, and not before."""
    scripted.answer("ReleasePins", refusal("QUOTA_EXCEEDED", retry_after_s=0.01), RELEASED)
    sending.sender.give_back(pin_ids=[1])
    assert sending.sender.flush(30)
    assert pins_released(scripted) == [[1]] * 2
    scripted.answer("ReleasePins", refusal("QUOTA_EXCEEDED", retry_after_s=1000), RELEASED)
    sending.sender.give_back(pin_ids=[2])
    assert wait_until(lambda: len(pins_released(scripted)) == 3)
    sending.sender.prompt()
    assert not sending.sender.flush(0.05)
    assert len(pins_released(scripted)) == 3


def test_the_lease_is_revoked_last(scripted: ScriptedCalls, sending: Sending) -> None:
    """Finishing sends the releases, reports unmapped extents, and then revokes the lease."""
    slow = Event()
    scripted.answer("ReleasePins", slow, RELEASED)
    scripted.answer("RevokeLease", grpc.StatusCode.UNAVAILABLE, REVOKED)
    sending.sender.give_back(pin_ids=[1])
    sending.sender.unmapped(7)
    sending.sender.finish()
    assert not sending.sender.join(0)
    assert "RevokeLease" not in scripted.requests
    slow.set()
    assert sending.sender.join(30)
    assert len(scripted.requests["RevokeLease"]) == 2
    assert sending.unmapped == [7]
    assert sending.closed.is_set()


def test_what_is_unmapped_after_the_lease_is_told_too(
    scripted: ScriptedCalls, sending: Sending
) -> None:
    """The lease ends at once. The connection stays open while views keep memory mapped."""
    scripted.answer("RevokeLease", REVOKED)
    sending.lingering += [7, 8]
    sending.sender.finish()
    assert sending.sender.join(30)
    for extent_id in (7, 8):
        assert not sending.closed.is_set()
        sending.sender.unmapped(extent_id)
        sending.lingering.remove(extent_id)
    assert sending.closed.wait(30)
    assert sending.unmapped == [7, 8]


def test_a_release_that_fails_by_a_bug_is_repeated(
    scripted: ScriptedCalls, sending: Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that fails with an unexpected error is repeated, because later ones wait for it."""
    failures = [RuntimeError("a bug")]
    release = LeaseCalls.release

    def fail_once(calls: LeaseCalls, pin_ids: list[int], timeout: float) -> None:
        if failures:
            raise failures.pop()
        release(calls, pin_ids, timeout)

    monkeypatch.setattr(LeaseCalls, "release", fail_once)
    scripted.answer("ReleasePins", RELEASED)
    sending.sender.give_back(pin_ids=[1])
    assert sending.sender.flush(10)
    assert pins_released(scripted) == [[1]]


def test_what_was_told_of_is_not_waited_for(scripted: ScriptedCalls, sending: Sending) -> None:
    """The sender may see an unmapped extent before the table notes it, and still finishes."""
    scripted.answer("RevokeLease", REVOKED)
    sending.lingering.append(7)
    sending.sender.finish()
    assert sending.sender.join(30)
    sending.sender.unmapped(7)
    assert sending.closed.wait(30)
    assert sending.unmapped == [7]


def test_an_abandoned_sender_waits_for_no_view(scripted: ScriptedCalls, sending: Sending) -> None:
    """An abandoned sender waits for no view, because the process's death ends the views."""
    scripted.answer("RevokeLease", REVOKED)
    sending.lingering.append(7)
    sending.sender.finish()
    assert sending.sender.join(30)
    sending.sender.abandon()
    assert sending.closed.wait(30)


def test_an_abandoned_sender_ends_and_says_what_it_did_not_send(
    scripted: ScriptedCalls, sending: Sending
) -> None:
    """An abandoned sender stops repeating, and its flush reports what was not sent."""
    scripted.answer("ReleasePins", *[grpc.StatusCode.UNAVAILABLE] * 100_000)
    sending.sender.give_back(pin_ids=[1])
    assert scripted.came.wait(30)
    sending.sender.abandon()
    assert sending.sender.join(30)
    assert not sending.sender.flush(30)
    assert "RevokeLease" not in scripted.requests
    assert sending.closed.is_set()


def test_a_prompt_ends_a_wait(scripted: ScriptedCalls, runtime_dir: RuntimeDir) -> None:
    """A sign of life ends the wait before the next attempt."""
    scripted.answer("ReleasePins", grpc.StatusCode.UNAVAILABLE, RELEASED)
    calls = StoreCalls(runtime_dir.grpc_target, "me")
    sender = ReleaseSender(
        LeaseCalls(calls, b"lease", 5),
        call_timeout=30,
        backoff=Backoff(3600, 3600),
        max_batch_size=2,
        tell_unmapped=list,
        closed=calls.close,
    )
    sender.give_back(pin_ids=[1])
    assert scripted.came.wait(30)
    while not sender.flush(0.01):
        sender.prompt()
    assert len(pins_released(scripted)) == 2
    sender.abandon()
    assert sender.join(30)


@pytest.fixture
def lane(runtime_dir: RuntimeDir, sending: Sending) -> Iterator[ScriptedLanes]:
    """Provides an idle scripted lane for the sender's calls."""
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
    """Keeps the sender's thread from reading lanes and waiting calls by itself."""
    monkeypatch.setattr(release_sender, "LOOK", 3600.0)


def pins_posted(lane: ScriptedLanes) -> list[list[int]]:
    """Returns the pin ids of each release that was posted on a lane."""
    requests = [prefix_cache_pb2.ReleasePinsRequest.FromString(body) for _, body in lane.calls]
    return [list(each.pin_ids) for each in requests]


@pytest.mark.usefixtures("unwatched")
def test_a_release_goes_over_a_lane_and_nobody_waits(
    scripted: ScriptedCalls, sending: Sending, lane: ScriptedLanes
) -> None:
    """A release is posted on a lane without waiting. It counts once its answer is read."""
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
    """The sender reads answers on lanes by itself, while there are unread ones."""
    for pin_id in (1, 2):
        lane.answer(b"")
        sending.sender.give_back(pin_ids=[pin_id])
        assert wait_until(lambda: not sending.sender._open)
        assert wait_until(lambda: not sending.sender._watching)


@pytest.mark.parametrize("what", [HANG_UP, Status.FromString(refusal("LEASE_NOT_FOUND"))])
def test_a_release_that_a_lane_lost_is_repeated(
    scripted: ScriptedCalls, sending: Sending, lane: ScriptedLanes, what: object
) -> None:
    """A release that a lane lost or refused is repeated over gRPC or a lane."""
    lane.answer(what, b"")
    scripted.answer("ReleasePins", RELEASED)
    sending.sender.give_back(pin_ids=[1])
    assert sending.sender.flush(30)
    assert [*pins_posted(lane), *pins_released(scripted)] == [[1], [1]]


def test_more_than_a_batch_goes_by_the_thread(sending: Sending, lane: ScriptedLanes) -> None:
    """More pins than fit in a batch are sent by the thread in several calls."""
    lane.answer(b"", b"")
    sending.sender.give_back(pin_ids=[1, 2, 3])
    assert sending.sender.flush(30)
    assert pins_posted(lane) == [[1, 2], [3]]


def test_the_lease_goes_after_what_lanes_have(
    scripted: ScriptedCalls, sending: Sending, lane: ScriptedLanes
) -> None:
    """The lease is revoked after the lanes' posted releases, and lost releases are repeated."""
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
    """An abandoned sender posts nothing, because its store or its process is gone."""
    sending.sender.abandon()
    sending.sender.give_back(pin_ids=[1])
    assert not sending.sender.flush(0)
    assert lane.calls == []


@pytest.mark.usefixtures("unwatched")
def test_reservations_without_slots_are_ended_together(
    sending: Sending, lane: ScriptedLanes
) -> None:
    """Reservations without slots are aborted together; a flush waits for them, not a reserve."""
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
    """A reservation without slots is aborted soon even if none follows it."""
    lane.answer(b"")
    sending.sender.give_back(slotless_ids=[1])
    assert wait_until(lambda: not sending.sender._open)
    assert len(lane.calls) == 1
