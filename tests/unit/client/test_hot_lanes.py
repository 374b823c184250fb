"""Lanes of a client: which are used, and what takes their place when they break."""

import os
import signal
from threading import Event, Thread, get_ident

import pytest
from google.rpc import status_pb2

from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore_client import errors
from kvstore_client.calls.channel import StoreCalls
from kvstore_client.calls.lane_pool import FIRST_REST, MOST
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.testing import wait_until
from wire.lane_rig import LIMIT, LaneRig
from wire.scripted_lanes import GARBAGE, HANG_UP, HUGE, InPieces
from wire.scripted_store import ScriptedCalls, refusal


def status(reason: str) -> status_pb2.Status:
    """Returns the status of an error of the store."""
    return status_pb2.Status.FromString(refusal(reason))


def test_a_call_is_answered_and_the_lane_is_used_again(rig: LaneRig) -> None:
    """A request in pieces arrives whole, with the time that there is, and one lane does."""
    rig.store.answer(b"first", b"")
    assert rig.call(b"one", b"", b"two", timeout=2.5) == b"first"
    assert rig.call(b"three") == b""
    assert [body for _, body in rig.store.calls] == [b"onetwo", b"three"]
    assert [head.timeout_us for head, _ in rig.store.calls] == [2_500_000, 30_000_000]
    assert rig.store.opened == 1


def test_what_is_longer_than_the_kernel_s_buffers_arrives(rig: LaneRig) -> None:
    """In both directions, beginning in any piece."""
    long = os.urandom(3 << 20)
    rig.store.answer(long, long)
    for pieces in ((b"short", long, b"end"), (long, long, b"end")):
        assert rig.call(*pieces) == long
        assert rig.store.calls[-1][1] == b"".join(pieces)


@pytest.mark.parametrize("count", [1, 7])
def test_an_answer_that_comes_in_pieces_is_an_answer(rig: LaneRig, count: int) -> None:
    """However its bytes come."""
    rig.store.answer(InPieces(b"an answer", count), b"next")
    assert rig.call() == b"an answer"
    assert rig.call() == b"next"


def test_more_than_an_answer_breaks_a_lane(rig: LaneRig) -> None:
    """Whose it would be is not to be known."""
    rig.store.answer(InPieces(b"an answer", 100, more=b"x"))
    assert rig.call() is None
    assert not rig.lanes._idle


def test_a_refusal_is_typed_and_keeps_the_lane(rig: LaneRig) -> None:
    """The status is the one that gRPC carries."""
    rig.store.answer(status("LEASE_NOT_FOUND"), b"next")
    with pytest.raises(errors.LeaseNotFound):
        rig.call()
    assert rig.call() == b"next"
    assert rig.store.opened == 1


@pytest.mark.parametrize("what", [HANG_UP, GARBAGE, HUGE, status_pb2.Status(code=14)])
def test_a_lane_that_breaks_leaves_its_call_to_grpc(rig: LaneRig, what: object) -> None:
    """So it does with the calls of a second or so; then another lane is tried."""
    rig.store.answer(what, b"again")
    assert rig.call() is None
    assert rig.call() is None
    assert len(rig.store.calls) == 1
    rig.now = FIRST_REST
    assert rig.call() == b"again"


def test_lanes_that_go_on_breaking_rest_for_longer(rig: LaneRig) -> None:
    """Twice as long, less what chance takes off."""
    rig.store.answer(HANG_UP, HANG_UP)
    assert rig.call() is None
    rig.now = FIRST_REST
    assert rig.call() is None
    assert len(rig.store.calls) == 2
    rig.now += FIRST_REST * 0.99
    assert rig.call() is None
    assert len(rig.store.calls) == 2


def test_signals_put_off_no_deadline(rig: LaneRig) -> None:
    """However often one comes, as a profiler's does: no wait begins again with it."""
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    here, late, over = get_ident(), Event(), Event()
    rig.store.answer(late)

    def strike() -> None:
        while not over.wait(0.01):
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
    """The lane is given up with the answer that may come late, and others rest."""
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
    """And asked again later."""
    rig.store.refusal = status("QUOTA_EXCEEDED")
    assert rig.call() is None
    rig.store.refusal = None
    assert rig.call() is None
    rig.now = FIRST_REST
    rig.store.answer(b"yes")
    assert rig.call() == b"yes"


def test_threads_have_a_lane_each_while_there_are_some(rig: LaneRig) -> None:
    """Whoever finds none free does not wait for one."""
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
    """They are left to gRPC, and so is what comes after."""
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
    """Its copies are closed: what it sends reaches nobody, and its parent's go on."""
    rig.store.answer(b"", b"parent")
    rig.call()
    [lane] = rig.lanes._idle
    child = os.fork()
    if child == 0:
        os._exit(0 if lane._socket.fileno() == -1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert rig.call() == b"parent"


def test_a_call_whose_lane_broke_is_made_over_grpc(
    rig: LaneRig, scripted: ScriptedCalls, runtime_dir: RuntimeDir
) -> None:
    """The same request, once more; what a lane answers is not asked twice."""
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
    """Whatever their length, as if they had been there from the first."""
    calls = StoreCalls(runtime_dir.grpc_target, "me", b"secret")
    for tokens in (b"", b"1234", bytes(200), bytes(70_000)):
        request = pb.MatchPrefixRequest(pin_id=7, sequence={})
        scripted.answer("MatchPrefix", pb.MatchPrefixResponse())
        calls.call(calls.prefix_cache.MatchPrefix, request, LIMIT, tokens=tokens)
        whole = pb.MatchPrefixRequest(pin_id=7, sequence={"tokens": tokens})
        assert scripted.requests["MatchPrefix"][-1] == whole.SerializeToString()
    calls.close()
