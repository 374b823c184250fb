"""Calls that a client posts on its lanes: who reads their answers, and what comes after them."""

import socket
from pathlib import Path
from threading import Event, Thread

import pytest
from google.rpc import status_pb2

from kvstore_client import errors
from kvstore_client.calls.lane import HotLane
from kvstore_client.calls.lane_pool import FIRST_REST, MOST_UNREAD
from kvstore_client.testing import wait_until
from wire.lane_rig import LIMIT, LaneRig
from wire.scripted_lanes import GARBAGE, HANG_UP, HUGE, InPieces
from wire.scripted_store import refusal


class ReadHalfway(HotLane):
    """A lane whose reader stops as soon as it has counted an answer."""

    def __init__(self, path: Path) -> None:
        self.halfway, self.go_on = Event(), Event()
        super().__init__(path)

    @property
    def read_count(self) -> int:
        """As of any lane."""
        return self._read_count

    @read_count.setter
    def read_count(self, count: int) -> None:
        self._read_count = count
        if count:
            self.halfway.set()
            self.go_on.wait(LIMIT)


def test_a_posted_call_is_sent_at_once_and_read_before_the_next_answer(rig: LaneRig) -> None:
    """Nobody waits for it; all go over one lane, in order, and those refused are told of."""
    assert not rig.post(1)
    rig.open_one()
    assert rig.post(1)
    assert rig.post(2)
    assert rig.store.came.acquire(timeout=LIMIT)
    assert rig.told == []
    rig.store.answer(b"", status_pb2.Status.FromString(refusal("LEASE_NOT_FOUND")), b"the call's")
    assert rig.call(b"three") == b"the call's"
    assert rig.told == [(1, True), (2, False)]
    assert [body for _, body in rig.store.calls[1:]] == [b"\x01", b"\x02", b"three"]
    assert rig.store.opened == 1


@pytest.mark.parametrize("what", [HANG_UP, GARBAGE, HUGE, InPieces(b"", 100, more=b"x")])
def test_what_a_lane_had_when_it_broke_is_told_of_once(rig: LaneRig, what: object) -> None:
    """Nothing of it is known to be done."""
    rig.open_one()
    assert rig.post(1)
    assert rig.post(2)
    rig.store.answer(what, HANG_UP)
    assert rig.call() is None
    assert rig.told[-1] == (2, False)
    assert [number for number, _ in rig.told] == [1, 2]
    rig.lanes.collect()
    assert len(rig.told) == 2
    assert not rig.post(3)


def test_answers_are_collected_where_no_call_comes(rig: LaneRig) -> None:
    """Those that are there; for others somebody may wait, who breaks no lane by that."""
    rig.open_one()
    assert rig.post(1)
    rig.lanes.collect()
    rig.lanes.collect(0.01)
    assert rig.told == []
    rig.store.answer(InPieces(b"an answer", 1))
    rig.lanes.collect(LIMIT)
    assert rig.told == [(1, True)]
    assert rig.post(2)
    rig.store.answer(b"")
    assert wait_until(lambda: rig.has_told(2))
    rig.store.answer(b"")
    assert rig.call() == b""
    assert rig.store.opened == 1


def test_an_answer_that_is_late_breaks_a_lane(rig: LaneRig) -> None:
    """Whoever looks finds it so, by the deadline that the posted call had."""
    rig.open_one()
    assert rig.post(1, timeout=0.01)
    assert wait_until(lambda: rig.has_told(1))
    assert rig.told == [(1, False)]
    assert not rig.lanes._all


def test_few_answers_are_left_unread(rig: LaneRig) -> None:
    """Before another call is posted those that are there are read."""
    rig.open_one()
    assert all(rig.post(number) for number in range(MOST_UNREAD))
    assert not rig.post(100)
    rig.store.answer(*[b""] * MOST_UNREAD)
    assert wait_until(lambda: rig.post(101))
    rig.store.answer(b"")
    rig.lanes.collect(LIMIT)
    assert [succeeded for _, succeeded in rig.told] == [True] * (MOST_UNREAD + 1)


def test_what_would_have_to_wait_is_not_posted(rig: LaneRig) -> None:
    """A store that reads nothing keeps no caller, whatever was begun breaks the lane."""
    rig.open_one()
    held = Event()
    rig.store.answer(held)
    posted = [rig.post(number, size=1 << 19) for number in range(MOST_UNREAD)]
    assert posted[0]
    assert not posted[-1]
    held.set()
    rig.lanes.collect(LIMIT)
    assert [number for number, _ in rig.told] == list(range(sum(posted)))


def test_what_was_not_posted_keeps_no_call_in_order(rig: LaneRig) -> None:
    """A lane that had no room for it owes no answer of it."""
    rig.open_one()
    [lane] = rig.lanes._idle
    # The least that there is: one of these calls goes whole or not at all.
    lane._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    posted = [rig.post(number, size=2000) for number in range(MOST_UNREAD)]
    assert posted[0]
    # Not always the last one: the store may have read some meanwhile.
    assert not all(posted)
    rig.store.answer(*[b""] * sum(posted), b"yes")
    rig.lanes.collect(LIMIT)
    assert [succeeded for _, succeeded in rig.told] == [True] * sum(posted)
    rig.lanes._idle.remove(lane)
    assert rig.call_in_order(LIMIT) == b"yes"
    assert rig.store.opened == 2
    rig.lanes._idle.append(lane)


def test_a_call_in_order_comes_after_what_other_lanes_have(rig: LaneRig) -> None:
    """It waits for their answers; a call that is not, or on the same lane, does not."""
    rig.open_two()
    assert rig.post(1)
    rig.lanes._idle.reverse()
    thread = Thread(target=rig.call_in_order, daemon=True)
    thread.start()
    assert wait_until(lambda: not rig.lanes._idle)
    assert rig.store.came.acquire(timeout=LIMIT)
    assert not rig.store.came.acquire(timeout=0.05)
    rig.store.answer(b"", b"")
    thread.join(LIMIT)
    assert rig.told == [(1, True)]
    assert len(rig.store.calls) == 4
    assert len(rig.lanes._idle) == 2


def test_what_does_not_come_before_a_call_in_order_costs_it_its_deadline(rig: LaneRig) -> None:
    """As an answer does that does not come; also where it would be made over gRPC."""
    rig.open_two()
    assert rig.post(1)
    assert rig.store.came.acquire(timeout=LIMIT)
    rig.lanes._idle.reverse()
    for _ in range(2):
        with pytest.raises(errors.StoreTimedOut):
            rig.call_in_order(0.05)
    assert len(rig.store.calls) == 3
    assert rig.told == []


def test_calls_in_order_do_not_wait_for_each_other(rig: LaneRig) -> None:
    """Each reads what its own lane has before it waits for what others have."""
    rig.lanes._most = 2
    for number in range(2):
        rig.open_two()
        assert rig.post(number)
        rig.lanes._idle.reverse()
        assert rig.post(number)
        threads = [Thread(target=rig.call_in_order, daemon=True) for _ in range(2)]
        for each in threads:
            each.start()
        assert wait_until(lambda: not rig.lanes._idle)
        rig.store.answer(*[b""] * 4)
        for each in threads:
            each.join(LIMIT / 2)
        assert not any(each.is_alive() for each in threads)
        assert all(rig.store.came.acquire(timeout=LIMIT) for _ in range(4))
    assert rig.told == [(0, True), (0, True), (1, True), (1, True)]


def test_a_call_in_order_waits_for_a_lane_that_is_in_use(rig: LaneRig) -> None:
    """Whoever uses it reads what was posted there, before its own answer."""
    rig.open_one()
    assert rig.post(1)
    assert rig.store.came.acquire(timeout=LIMIT)
    thread = Thread(target=rig.call, daemon=True)
    thread.start()
    assert wait_until(lambda: not rig.lanes._idle)
    with pytest.raises(errors.StoreTimedOut):
        rig.call_in_order(0.05)
    assert [body for _, body in rig.store.calls] == [b"request", b"\x01"]
    rig.now = FIRST_REST
    rig.store.answer(b"", b"yes", b"yes")
    assert rig.call_in_order() == b"yes"
    thread.join(LIMIT)
    assert rig.told == [(1, True)]


def test_an_answer_that_is_being_read_is_waited_for_no_further(rig: LaneRig) -> None:
    """However far its reader is: what a lane still has and what it had are not one moment's."""
    rig.lane_class = ReadHalfway
    rig.open_one()
    assert rig.post(1)
    [lane] = rig.lanes._idle
    assert isinstance(lane, ReadHalfway)
    thread = Thread(target=rig.call, daemon=True)
    thread.start()
    rig.store.answer(b"", b"yes", b"yes")
    assert lane.halfway.wait(LIMIT)
    in_order = Thread(target=rig.call_in_order, daemon=True)
    in_order.start()
    assert wait_until(lambda: rig.lanes._waiting_count or len(rig.store.calls) == 4)
    lane.go_on.set()
    for each in (thread, in_order):
        each.join(LIMIT / 2)
        assert not each.is_alive()
    assert rig.told == [(1, True)]


def test_closing_tells_of_what_was_posted(rig: LaneRig) -> None:
    """It may have been done, or not."""
    rig.open_one()
    assert rig.post(1)
    rig.lanes.close()
    assert rig.told == [(1, False)]
    assert not rig.post(2)
