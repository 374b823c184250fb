"""Lanes on a real server: how calls are framed, limited, queued, timed and ended."""

import socket
from functools import partial
from itertools import count
from threading import Event, Semaphore, Thread, get_ident

import grpc
import pytest

from kvstore.core.values.limits import Quotas, QuotaTable
from kvstore.errors import QuotaExceeded
from kvstore.rpc.lane import (
    LENGTHS,
    MAX_HEAD_BYTES,
    MAX_LANES_OF_PROCESS,
    METHODS,
    MOST_AT_ONCE,
    MOST_IN_A_ROW,
    THREAD_COUNT,
    Frame,
    HotLane,
    HotLanes,
    Party,
)
from kvstore.service.call_durations import CallTimes
from kvstore.service.clock import MONOTONIC
from kvstore.service.serving_turn import let_others_serve
from kvstore.service.tenancy.tenant_lookup import Tenant, Tenants
from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore_client.testing import wait_until
from stores.rpc_world import (
    ADMIN_UID,
    OpenLane,
    Refused,
    Server,
    Worker,
    lane_answer,
    lane_call,
    lane_frame,
    nothing,
    party_of,
    reason,
    refusal_of_status,
    tokens,
)

RELEASE = METHODS.index("/kvstore.v1.PrefixCacheService/ReleasePins")
MATCH = METHODS.index("/kvstore.v1.PrefixCacheService/MatchPrefix")
ACQUIRE = METHODS.index("/kvstore.v1.PrefixCacheService/AcquirePrefix")
INSERT = METHODS.index("/kvstore.v1.PrefixCacheService/InsertPrefix")


def test_a_lane_carries_one_call_after_another(server: Server, open_lane: OpenLane) -> None:
    """A lane answers each call in turn, also after a call that was refused."""
    worker = server.worker()
    lane = open_lane(worker)
    for method, expected in ((RELEASE, "OK"), (MATCH, "INVALID_FIELD"), (99, "INVALID_FIELD")) * 2:
        assert reason(lane_call(lane, method, nothing(worker))[0]) == expected


def test_a_lane_s_secret_opens_no_other_lease(server: Server, open_lane: OpenLane) -> None:
    """A call that names a lease of another secret is refused, also right after one that is not."""
    worker, other = server.worker(), server.worker()
    lane = open_lane(worker)
    for named, expected in ((worker, "OK"), (other, "LEASE_NOT_FOUND")) * 2:
        assert reason(lane_call(lane, RELEASE, nothing(named))[0]) == expected


def test_a_call_in_pieces_is_a_call(server: Server, open_lane: OpenLane) -> None:
    """A call is answered even if its bytes arrive one by one."""
    worker = server.worker()
    lane, body = open_lane(worker), nothing(worker)
    for each in lane_frame(RELEASE, body):
        lane.sendall(bytes((each,)))
    assert reason(lane_answer(lane)[0]) == "OK"


@pytest.mark.parametrize(
    ("timeout_us", "why"),
    [
        (0, "missing or too long"),
        (1, "the call had not begun"),
        (90_000_000, "missing or too long"),
    ],
)
def test_a_deadline_is_looked_at(
    server: Server, open_lane: OpenLane, timeout_us: int, why: str
) -> None:
    """A call is refused if its deadline is missing, too long, or over before the call begins."""
    worker = server.worker()
    answer, _ = lane_call(open_lane(worker), RELEASE, nothing(worker), timeout_us=timeout_us)
    refused = refusal_of_status(answer.status)
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    assert why in answer.status.message


def test_a_rate_counts_what_lanes_carry(server: Server, open_lane: OpenLane) -> None:
    """A rate limit refuses calls over lanes as over gRPC, except those that give something back."""
    worker = server.worker()
    lane = open_lane(worker)
    # One at once, and then none for half a minute.
    server.store.change_rates(QuotaTable(Quotas(requests_per_second=1 / 32)))
    body = pb.MatchPrefixRequest().SerializeToString()
    told = [reason(lane_call(lane, MATCH, body)[0]) for _ in range(2)]
    assert told == ["INVALID_FIELD", "QUOTA_EXCEEDED"]
    release = pb.ReleasePinsRequest().SerializeToString()
    assert reason(lane_call(lane, RELEASE, release)[0]) == "INVALID_FIELD"
    assert server.store.traffic.requests(f"uid-{worker.uid}").refused_count == 1


def test_an_open_lane_follows_the_tenants(server: Server, open_lane: OpenLane) -> None:
    """Once its uid is another tenant's, its calls are too, and the old lease is unknown."""
    worker = server.worker(uid=7)
    lane = open_lane(worker)
    assert reason(lane_call(lane, RELEASE, nothing(worker))[0]) == "OK"
    before = server.store.traffic.requests("uid-7").request_count
    kept = server.credentials.tenants
    server.credentials.tenants = Tenants([Tenant("carol", uids=frozenset({7}))])
    assert reason(lane_call(lane, RELEASE, nothing(worker))[0]) == "LEASE_NOT_FOUND"
    assert server.store.traffic.requests("carol").request_count == 1
    server.credentials.tenants = kept
    assert reason(lane_call(lane, RELEASE, nothing(worker))[0]) == "OK"
    assert server.store.traffic.requests("uid-7").request_count == before + 1


@pytest.mark.parametrize(
    ("head_bytes", "body_bytes"), [(MAX_HEAD_BYTES + 1, 0), (1, (16 << 20) + 1), (1, (1 << 32) - 1)]
)
def test_lengths_over_the_bounds_end_a_lane(
    server: Server, open_lane: OpenLane, head_bytes: int, body_bytes: int
) -> None:
    """A call with a length over the limit is refused with its reason, and its lane ends."""
    lane = open_lane(server.worker())
    lane.sendall(LENGTHS.pack(head_bytes, body_bytes))
    assert reason(lane_answer(lane)[0]) == "LIMIT_EXCEEDED"
    with pytest.raises(EOFError):
        lane_answer(lane)


def test_a_head_that_is_none_ends_a_lane(server: Server, open_lane: OpenLane) -> None:
    """A malformed head ends the lane, because the beginning of the next call is unknown."""
    lane = open_lane(server.worker())
    lane.sendall(LENGTHS.pack(3, 0) + b"\xff\xff\xff")
    assert reason(lane_answer(lane)[0]) == "INVALID_FIELD"
    with pytest.raises(EOFError):
        lane_answer(lane)


def test_a_call_that_does_not_come_whole_keeps_no_thread(
    server: Server, lanes: HotLanes, open_lane: OpenLane
) -> None:
    """A lane with a partial call is ended, and others are answered, also of the same tenant."""
    worker = server.worker()
    halves = [open_lane(worker) for _ in range(MAX_LANES_OF_PROCESS - 1)]
    for each in halves:
        each.sendall(LENGTHS.pack(10, 10) + b"half")
    assert reason(lane_call(open_lane(server.worker(uid=3)), RELEASE, b"")[0]) == "INVALID_FIELD"
    for each in halves:
        with pytest.raises((EOFError, ConnectionResetError)):
            lane_answer(each)
    assert lanes.failure_count == 0


def test_who_hung_up_wants_no_answer(server: Server, open_lane: OpenLane) -> None:
    """A call is not made if its client hung up before the call began."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    worker.publish(namespace_id, tokens(*range(8)), 1)
    request = pb.MatchPrefixRequest(
        caller=worker.caller(),
        namespace_id=namespace_id,
        sequence=pb.Sequence(tokens=tokens(*range(9))),
        pin_id=5,
    )
    near, far = socket.socketpair()
    near.sendall(lane_frame(MATCH, request.SerializeToString()))
    near.close()
    assert server.lanes is not None
    server.lanes.take(far, party_of(worker))
    # The next one is served after it was looked at: the threads take events in order.
    server.lanes.look()
    assert reason(lane_call(open_lane(worker), RELEASE, nothing(worker))[0]) == "OK"
    [lease] = server.store.stats(server.credentials.identity_of(ADMIN_UID)).leases
    assert lease.pin_count == 0


def test_a_process_has_few_lanes(server: Server, lanes: HotLanes, open_lane: OpenLane) -> None:
    """The number of a process's lanes is limited, and other processes still have room."""
    worker = server.worker()
    opened = [open_lane(worker) for _ in range(MAX_LANES_OF_PROCESS)]
    with pytest.raises(QuotaExceeded):
        lanes.require_room(party_of(worker))
    lanes.require_room(party_of(server.worker()))
    lanes.end(worker.number)
    for each in opened:
        with pytest.raises(EOFError):
            lane_answer(each)


def test_a_lane_s_calls_are_timed(server: Server) -> None:
    """Calls over lanes are timed by method and outcome, including refused ones."""
    server.store.call_times["lane"] = times = CallTimes()
    worker = server.worker()
    near, far = socket.socketpair()
    with HotLanes(server.store, server.credentials, MONOTONIC) as lanes, near:
        lanes.take(far, party_of(worker))
        for method in (RELEASE, RELEASE, MATCH):
            lane_call(near, method, nothing(worker))
    told = {key: counts.total for key, counts in times.read().items()}
    assert told == {(METHODS[RELEASE], "OK"): 2, (METHODS[MATCH], "INVALID_FIELD"): 1}


def test_lanes_are_shared_out(server: Server) -> None:
    """One uid may have three quarters of all lanes, so the next uid finds room."""
    few = HotLanes(server.store, server.credentials, MONOTONIC, max_lanes=4)
    ends = []
    with few:
        for number in range(3):
            near, far = socket.socketpair()
            ends.append(near)
            few.take(far, Party(5, b"", b"", number))
        with pytest.raises(QuotaExceeded):
            few.require_room(Party(5, b"", b"", 9))
        few.require_room(Party(6, b"", b"", 9))
    for each in ends:
        with pytest.raises(EOFError):
            lane_answer(each)
        each.close()


class StuckReleases:
    """Makes a store's releases wait for :meth:`go_on`, and pass their turn on if they are told.

    ``entered`` is released for each.
    """

    def __init__(self, server: Server, *, pass_on: bool) -> None:
        self._release = server.store.release
        self._pass_on = pass_on
        self.entered, self._go_on = Semaphore(0), Event()
        self._threads: list[Thread] = []
        server.store.release = self._wait  # type: ignore[method-assign, assignment]

    def _wait(self, *arguments: object) -> None:
        if self._pass_on:
            let_others_serve()
        self.entered.release()
        assert self._go_on.wait(30)
        self._release(*arguments)  # type: ignore[arg-type]

    def begin(self, lane: socket.socket, worker: Worker, *, is_made: bool = True) -> None:
        """Sends a release; waits until the store makes it, unless that is not to be."""
        call = lane, RELEASE, nothing(worker)
        self._threads.append(Thread(target=lane_call, args=call, daemon=True))
        self._threads[-1].start()
        assert not is_made or self.entered.acquire(timeout=30)

    def go_on(self) -> None:
        """Lets all releases end, and waits until they are answered."""
        self._go_on.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()


def test_a_call_that_stands_still_is_seen(
    server: Server, lanes: HotLanes, open_lane: OpenLane
) -> None:
    """The probe of a look is not taken while a call keeps its turn and waits."""
    worker = server.worker()
    lane = open_lane(worker)
    stuck = StuckReleases(server, pass_on=False)
    stuck.begin(lane, worker)
    before = lanes.last_tick
    lanes.look()
    assert lanes.is_alive()
    assert lanes.last_tick == before
    stuck.go_on()
    # Any call after it shows that the probe was taken.
    while lanes.last_tick == before:
        lane_call(lane, RELEASE, b"")
    assert lanes.failure_count == 0


def test_a_call_that_waits_lets_others_be_made(
    server: Server, lanes: HotLanes, open_lane: OpenLane
) -> None:
    """Calls that pass their turn on get half of the threads for a tenant; another is served."""
    worker = server.worker()
    opened = [open_lane(worker) for _ in range(THREAD_COUNT // 2 + 1)]
    stuck = StuckReleases(server, pass_on=True)
    for lane in opened[:-1]:
        stuck.begin(lane, worker)
    # It may have no thread: it begins once one of the others is answered.
    stuck.begin(opened[-1], worker, is_made=False)
    assert wait_until(lambda: lanes._fair.has_waiting)
    lane = open_lane(server.worker(uid=3))
    assert reason(lane_call(lane, MATCH, b"")[0]) == "INVALID_FIELD"
    assert lanes._fair.has_waiting
    stuck.go_on()
    assert lanes.failure_count == 0


@pytest.mark.parametrize("pass_on", [True, False])
def test_who_ended_its_sending_gets_its_answer(
    server: Server, open_lane: OpenLane, *, pass_on: bool
) -> None:
    """A client that sends nothing more after a call still gets the answer, and then the end."""
    worker = server.worker()
    lane = open_lane(worker)
    stuck = StuckReleases(server, pass_on=pass_on)
    stuck.begin(lane, worker)
    lane.shutdown(socket.SHUT_WR)
    # Its thread fails if the call has no answer.
    stuck.go_on()
    with pytest.raises(EOFError):
        lane_answer(lane)


def test_a_call_behind_another_is_not_made_for_who_hung_up(
    server: Server, lanes: HotLanes, open_lane: OpenLane
) -> None:
    """The client hangs up while its first call waits: the second one is not made."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    worker.publish(namespace_id, tokens(*range(8)), 1)
    request = pb.MatchPrefixRequest(
        caller=worker.caller(),
        namespace_id=namespace_id,
        sequence=pb.Sequence(tokens=tokens(*range(9))),
        pin_id=5,
    )
    lane, other = open_lane(worker), open_lane(worker)
    stuck = StuckReleases(server, pass_on=True)
    *rest, served, _ = lanes._lanes.values()
    lane.sendall(lane_frame(RELEASE, nothing(worker)))
    assert stuck.entered.acquire(timeout=30)
    lane.sendall(lane_frame(MATCH, request.SerializeToString()))
    lane.close()
    assert reason(lane_call(other, MATCH, b"")[0]) == "INVALID_FIELD"
    assert served.may_be_gone
    stuck.go_on()
    assert wait_until(lambda: len(lanes._lanes) == len(rest) + 1)
    [lease] = server.store.stats(server.credentials.identity_of(ADMIN_UID)).leases
    assert lease.pin_count == 0


def test_who_hung_up_keeps_no_lane(server: Server, lanes: HotLanes, open_lane: OpenLane) -> None:
    """An idle lane of a client that hung up ends, though its tenant may have no thread for it."""
    worker = server.worker()
    idle = open_lane(worker)
    opened = [open_lane(worker) for _ in range(THREAD_COUNT // 2)]
    stuck = StuckReleases(server, pass_on=True)
    for lane in opened:
        stuck.begin(lane, worker)
    idle.close()
    assert wait_until(lambda: len(lanes._lanes) == len(opened))
    stuck.go_on()


def test_calls_that_came_together_do_not_hide_another_tenant(
    server: Server, lanes: HotLanes, open_lane: OpenLane
) -> None:
    """A call of another tenant is made soon, however many calls wait on one lane."""
    first, second = server.worker(uid=3), server.worker(uid=4)
    flood, other = open_lane(first), open_lane(second)
    order: list[int] = []
    entered, go_on = Semaphore(0), Event()
    answer = lanes.answer

    def noted(lane: HotLane, frame: Frame) -> tuple[bytes, bytes]:
        order.append(lane.party.uid)
        if len(order) == 1:
            entered.release()
            assert go_on.wait(30)
        return answer(lane, frame)

    lanes.answer = noted  # type: ignore[method-assign]
    count = 15 * MOST_AT_ONCE
    flood.sendall(lane_frame(RELEASE, nothing(first)) * count)
    assert entered.acquire(timeout=30)
    other.sendall(lane_frame(RELEASE, nothing(second)))
    go_on.set()
    assert reason(lane_answer(other)[0]) == "OK"
    assert [reason(lane_answer(flood)[0]) for _ in range(count)] == ["OK"] * count
    # All that came together, and one in the turn that its lane had taken meanwhile.
    assert order.index(4) <= MOST_AT_ONCE + 2


def test_threads_take_turns_while_calls_pile_up(
    server: Server, lanes: HotLanes, open_lane: OpenLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some calls in a row another thread goes on, one at a time."""
    monkeypatch.setattr("kvstore.rpc.lane.MOST_IN_A_ROW", 2)
    worker = server.worker()
    opened = [open_lane(worker) for _ in range(MAX_LANES_OF_PROCESS)]
    threads, under_way = set(), Semaphore(1)
    answer = lanes.answer

    def noted(*arguments: object) -> tuple[bytes, bytes]:
        assert under_way.acquire(blocking=False)
        threads.add(get_ident())
        try:
            return answer(*arguments)  # type: ignore[arg-type]
        finally:
            under_way.release()

    lanes.answer = noted  # type: ignore[method-assign]
    while len(threads) < THREAD_COUNT:
        for lane in opened:
            lane.sendall(lane_frame(RELEASE, nothing(worker)))
        assert [reason(lane_answer(lane)[0]) for lane in opened] == ["OK"] * len(opened)
    assert lanes.failure_count == 0


def test_one_thread_serves_from_call_to_call(
    server: Server, lanes: HotLanes, open_lane: OpenLane
) -> None:
    """A thread keeps its turn while no call waits for anything else."""
    worker = server.worker()
    opened = [open_lane(worker) for _ in range(4)]
    threads = set()
    answer = lanes.answer

    def noted(*arguments: object) -> tuple[bytes, bytes]:
        threads.add(get_ident())
        return answer(*arguments)  # type: ignore[arg-type]

    lanes.answer = noted  # type: ignore[method-assign]
    for _ in range(MOST_IN_A_ROW // len(opened) - 1):
        for lane in opened:
            lane.sendall(lane_frame(RELEASE, nothing(worker)))
        assert [reason(lane_answer(lane)[0]) for lane in opened] == ["OK"] * len(opened)
    assert len(threads) == 1


def test_a_fault_keeps_nobody_waiting(server: Server, lanes: HotLanes, open_lane: OpenLane) -> None:
    """Calls that break in a way that nobody foresaw: the lane behind them is served."""
    worker = server.worker()
    first, waiting = [open_lane(worker) for _ in range(THREAD_COUNT // 2)], open_lane(worker)
    entered, go_on, number = Semaphore(0), Event(), count()
    answer = lanes.answer

    def faulty(*arguments: object) -> tuple[bytes, bytes]:
        if next(number) >= len(first):
            return answer(*arguments)  # type: ignore[arg-type]
        let_others_serve()
        entered.release()
        assert go_on.wait(30)
        raise RuntimeError("a fault put in on purpose")

    lanes.answer = faulty  # type: ignore[method-assign]
    frame = lane_frame(RELEASE, nothing(worker))
    for each in first:
        each.sendall(frame)
        assert entered.acquire(timeout=30)
    waiting.sendall(frame)
    assert wait_until(lambda: bool(lanes._fair._waiting))
    go_on.set()
    assert reason(lane_answer(waiting)[0]) == "OK"
    # The first that broke let it in.
    assert wait_until(lambda: lanes.failure_count == len(first))


def test_a_fault_behind_a_call_costs_no_thread(
    server: Server, lanes: HotLanes, open_lane: OpenLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search for other lanes that fails leaves the tenant its threads."""
    monkeypatch.setattr("kvstore.rpc.lane.LOOK_EVERY", 1)
    collect = lanes._collect

    def faulty(timeout: float | None) -> None:
        if timeout == 0:
            raise OSError("a fault put in on purpose")
        collect(timeout)

    def failed(count: int) -> bool:
        return lanes.failure_count == count

    lanes._collect = faulty  # type: ignore[method-assign]
    worker = server.worker()
    lane = open_lane(worker)
    for number in range(1, THREAD_COUNT + 1):
        assert reason(lane_call(lane, RELEASE, nothing(worker))[0]) == "OK"
        assert wait_until(partial(failed, number))
        assert lanes._fair._idle == THREAD_COUNT


def test_a_refusal_says_the_same_as_over_grpc(server: Server) -> None:
    """A refusal over a lane has the code, reason, values and details of one over gRPC."""
    worker = server.worker()
    request = pb.MatchPrefixRequest(
        caller=worker.caller(), namespace_id=bytes(16), sequence=pb.Sequence(), pin_id=1
    )
    refusals = []
    for lanes in (server.lanes, None):
        server.lanes, kept = lanes, server.lanes
        with pytest.raises(Refused) as caught:
            worker.ask(worker.prefix_cache.MatchPrefix, request)
        refusals.append(caught.value)
        server.lanes = kept
    assert refusals[0] == refusals[1]
    assert refusals[0].reason == "NAMESPACE_NOT_FOUND"
