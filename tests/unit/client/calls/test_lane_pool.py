"""The lanes of a client: their choice, and the fallback to gRPC when they break."""

import os
import signal
import socket
from pathlib import Path
from threading import Event, Thread, get_ident

import pytest
from google.rpc import status_pb2

from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore_client import errors
from kvstore_client.calls.grpc_channel import StoreCalls
from kvstore_client.calls.lane import Lane
from kvstore_client.calls.lane_pool import FIRST_REST, MOST, MOST_UNREAD
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.testing import wait_until
from wire.lane_rig import LIMIT, LaneRig
from wire.scripted_lanes import GARBAGE, HANG_UP, HUGE, InPieces
from wire.scripted_store import ScriptedCalls, refusal


def status(reason: str) -> status_pb2.Status:
    """Returns the status of an error of the store."""
    return status_pb2.Status.FromString(refusal(reason))


def test_a_call_is_answered_and_the_lane_is_used_again(rig: LaneRig) -> None:
    """A request in several pieces arrives whole with its timeout, and the lane is used again."""
    rig.store.answer(b"first", b"")
    assert rig.call(b"one", b"", b"two", timeout=2.5) == b"first"
    assert rig.call(b"three") == b""
    assert [body for _, body in rig.store.calls] == [b"onetwo", b"three"]
    assert [head.timeout_us for head, _ in rig.store.calls] == [2_500_000, 30_000_000]
    assert rig.store.opened == 1


def test_what_is_longer_than_the_kernel_s_buffers_arrives(rig: LaneRig) -> None:
    """Requests and answers longer than the kernel's buffers arrive whole."""
    long = os.urandom(3 << 20)
    rig.store.answer(long, long)
    for pieces in ((b"short", long, b"end"), (long, long, b"end")):
        assert rig.call(*pieces) == long
        assert rig.store.calls[-1][1] == b"".join(pieces)


@pytest.mark.parametrize("count", [1, 7])
def test_an_answer_that_comes_in_pieces_is_an_answer(rig: LaneRig, count: int) -> None:
    """An answer in several pieces is read whole."""
    rig.store.answer(InPieces(b"an answer", count), b"next")
    assert rig.call() == b"an answer"
    assert rig.call() == b"next"


def test_more_than_an_answer_breaks_a_lane(rig: LaneRig) -> None:
    """A lane with bytes after the answer is closed, because their call is unknown."""
    rig.store.answer(InPieces(b"an answer", 100, more=b"x"))
    assert rig.call() is None
    assert not rig.lanes._idle


def test_a_refusal_is_typed_and_keeps_the_lane(rig: LaneRig) -> None:
    """A refusal over a lane is raised by its class, and the lane stays open."""
    rig.store.answer(status("LEASE_NOT_FOUND"), b"next")
    with pytest.raises(errors.LeaseNotFound):
        rig.call()
    assert rig.call() == b"next"
    assert rig.store.opened == 1


@pytest.mark.parametrize("what", [HANG_UP, GARBAGE, HUGE, status_pb2.Status(code=14)])
def test_a_lane_that_breaks_leaves_its_call_to_grpc(rig: LaneRig, what: object) -> None:
    """A call whose lane broke goes over gRPC, as do the calls of the next second."""
    rig.store.answer(what, b"again")
    assert rig.call() is None
    assert rig.call() is None
    assert len(rig.store.calls) == 1
    rig.now = FIRST_REST
    assert rig.call() == b"again"


def test_lanes_that_go_on_breaking_rest_for_longer(rig: LaneRig) -> None:
    """The rest after a lane breaks doubles each time, with random variation."""
    rig.store.answer(HANG_UP, HANG_UP)
    assert rig.call() is None
    rig.now = FIRST_REST
    assert rig.call() is None
    assert len(rig.store.calls) == 2
    rig.now += FIRST_REST * 0.99
    assert rig.call() is None
    assert len(rig.store.calls) == 2


def test_signals_put_off_no_deadline(rig: LaneRig) -> None:
    """Frequent signals, as a profiler sends, do not restart a deadline."""
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    here, late, over = get_ident(), Event(), Event()
    rig.store.answer(late)

    def strike() -> None:
        while not over.wait(0.001):
            signal.pthread_kill(here, signal.SIGUSR1)

    striker = Thread(target=strike)
    striker.start()
    try:
        with pytest.raises(errors.StoreTimedOut):
            rig.call(timeout=0.1)
    finally:
        over.set()
        striker.join()
        signal.signal(signal.SIGUSR1, before)
        late.set()


def test_a_deadline_is_a_deadline(rig: LaneRig) -> None:
    """A lane with an overdue answer is closed, and the next calls go over gRPC for a while."""
    late = Event()
    rig.store.answer(late)
    with pytest.raises(errors.StoreTimedOut):
        rig.call(timeout=0.05)
    assert rig.call() is None
    assert wait_until(rig.store.all_met)
    late.set()
    rig.store.answer(b"again")
    rig.now = FIRST_REST
    assert rig.call() == b"again"


def test_a_store_that_refuses_a_lane_is_called_over_grpc(rig: LaneRig) -> None:
    """A store that refuses a lane is called over gRPC, and asked for a lane again later."""
    rig.store.refusal = status("QUOTA_EXCEEDED")
    assert rig.call() is None
    rig.store.refusal = None
    assert rig.call() is None
    rig.now = FIRST_REST
    rig.store.answer(b"yes")
    assert rig.call() == b"yes"


def test_threads_have_a_lane_each_while_there_are_some(rig: LaneRig) -> None:
    """A call that finds no free lane does not wait for one."""
    held = [Event() for _ in range(MOST)]
    rig.store.answer(*held)
    threads = [Thread(target=rig.call, daemon=True) for _ in held]
    for each in threads:
        each.start()
    assert all(rig.store.came.acquire(timeout=LIMIT) for _ in held)
    assert rig.call() is None
    for each in held:
        each.set()
    for thread in threads:
        thread.join(LIMIT)
    assert rig.store.opened == MOST


def test_closing_ends_calls_under_way(rig: LaneRig) -> None:
    """Closing the lanes leaves running and later calls to gRPC."""
    held = Event()
    rig.store.answer(held)
    answers: list[bytes | None] = []
    thread = Thread(target=lambda: answers.append(rig.call()), daemon=True)
    thread.start()
    assert rig.store.came.acquire(timeout=LIMIT)
    rig.lanes.close()
    thread.join(LIMIT)
    assert answers == [None]
    assert rig.call() is None
    held.set()


def test_a_forked_child_has_no_lanes(rig: LaneRig) -> None:
    """A forked child has closed copies of the lanes, and the parent's lanes stay usable."""
    rig.store.answer(b"", b"parent")
    rig.call()
    [lane] = rig.lanes._idle
    child = os.fork()
    if child == 0:
        ends = lane._socket, lane._receiver
        os._exit(0 if all(each.fileno() == -1 for each in ends) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert rig.call() == b"parent"


def test_a_call_whose_lane_broke_is_made_over_grpc(
    rig: LaneRig, scripted: ScriptedCalls, runtime_dir: RuntimeDir
) -> None:
    """A call whose lane broke is repeated once over gRPC. An answered call is not repeated."""
    calls = StoreCalls(runtime_dir.grpc_target, "me", b"secret")
    calls.use_lanes(rig.lanes)
    request = pb.ReleasePinsRequest(pin_ids=[7])
    rig.store.answer(b"", HANG_UP)
    scripted.answer("ReleasePins", pb.ReleasePinsResponse())
    method = calls.prefix_cache.ReleasePins
    calls.call(method, request, LIMIT)
    assert "ReleasePins" not in scripted.requests
    calls.call(method, request, LIMIT)
    assert scripted.requests["ReleasePins"] == [request.SerializeToString()]
    assert [body for _, body in rig.store.calls] == [request.SerializeToString()] * 2
    calls.close()


def test_tokens_go_over_grpc_within_the_message(
    scripted: ScriptedCalls, runtime_dir: RuntimeDir
) -> None:
    """Over gRPC the tokens become part of the message, whatever their length."""
    calls = StoreCalls(runtime_dir.grpc_target, "me", b"secret")
    for tokens in (b"", b"1234", bytes(200), bytes(70_000)):
        request = pb.MatchPrefixRequest(pin_id=7, sequence={})
        scripted.answer("MatchPrefix", pb.MatchPrefixResponse())
        calls.call(calls.prefix_cache.MatchPrefix, request, LIMIT, tokens=tokens)
        whole = pb.MatchPrefixRequest(pin_id=7, sequence={"tokens": tokens})
        assert scripted.requests["MatchPrefix"][-1] == whole.SerializeToString()
    calls.close()


class ReadHalfway(Lane):
    """A lane whose reader stops as soon as it has counted an answer."""

    def __init__(self, path: Path) -> None:
        self.halfway, self.go_on = Event(), Event()
        super().__init__(path)

    @property
    def read_count(self) -> int:
        """Returns the number of answers read so far."""
        return self._read_count

    @read_count.setter
    def read_count(self, count: int) -> None:
        self._read_count = count
        if count:
            self.halfway.set()
            self.go_on.wait(LIMIT)


def test_a_posted_call_is_sent_at_once_and_read_before_the_next_answer(rig: LaneRig) -> None:
    """A posted call is sent at once, and its result is reported when the next answer is read."""
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
    """The posted calls of a broken lane are reported once, the unanswered ones as failed."""
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
    """Collecting reports the answers that have arrived, and may wait for others."""
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
    """A lane whose posted call is not answered by its deadline is closed."""
    rig.open_one()
    assert rig.post(1, timeout=0.01)
    assert wait_until(lambda: rig.has_told(1))
    assert rig.told == [(1, False)]
    assert not rig.lanes._all


def test_few_answers_are_left_unread(rig: LaneRig) -> None:
    """At most a fixed number of posted calls are unread, and posting reads the answers."""
    rig.open_one()
    assert all(rig.post(number) for number in range(MOST_UNREAD))
    assert not rig.post(100)
    rig.store.answer(*[b""] * MOST_UNREAD)
    assert wait_until(lambda: rig.post(101))
    rig.store.answer(b"")
    rig.lanes.collect(LIMIT)
    assert [succeeded for _, succeeded in rig.told] == [True] * (MOST_UNREAD + 1)


def test_what_would_have_to_wait_is_not_posted(rig: LaneRig) -> None:
    """A post that would block is not sent. If it was begun, its lane is closed."""
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
    """A call that was not posted does not delay later calls in order."""
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
    """A call in order waits for the posted calls of other lanes, but not of its own lane."""
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
    """A call in order times out if the posted calls before it are not answered."""
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
    """Two calls in order do not wait for each other, because each first reads its own lane."""
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
    """A call in order waits for a lane in use, whose user first reads the posted calls' answers."""
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
    """A call in order does not wait for an answer that another thread is already reading."""
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
    """Closing the lanes reports each unanswered posted call as failed."""
    rig.open_one()
    assert rig.post(1)
    rig.lanes.close()
    assert rig.told == [(1, False)]
    assert not rig.post(2)
