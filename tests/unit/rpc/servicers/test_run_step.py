"""RunStep over a real server: the operations of many sequences in one call."""

import socket
from collections.abc import Callable, Sequence
from threading import Event, Thread
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from kvstore.core.pool.disk_state import DiskState
from kvstore.core.values.limits import Limits, Quotas, QuotaTable
from kvstore.logs import merge_call
from kvstore.rpc.lane import METHODS, HotLanes
from kvstore.service.call_durations import CallTimes
from kvstore.service.clock import MONOTONIC
from kvstore.service.page_io.loads.load_call import DiskPart, LoadTerms
from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore.v1 import store_pb2
from stores.rpc_world import (
    EPOCH,
    PAGE_TOKENS,
    Refused,
    Server,
    Worker,
    lane_call,
    party_of,
    refusal_of_status,
    tokens,
)

# Three pages, and one token to run.
PROMPT = tokens(*range(13))
PAGES = PROMPT[: 12 * 4]
PATH = "/kvstore.v1.PrefixCacheService/"
pytestmark = pytest.mark.parametrize("over", ["grpc", "lane"], indirect=True)


def acquire(pin_id: int, reservation_id: int, token_bytes: bytes = PROMPT) -> pb.StepOperation:
    """Returns an acquire of four pages."""
    return pb.StepOperation(
        acquire=pb.AcquirePrefixRequest(
            sequence=pb.Sequence(tokens=token_bytes),
            pin_id=pin_id,
            reservation_id=reservation_id,
            total_page_count=4,
        )
    )


def match(pin_id: int, token_bytes: bytes = PROMPT, **base: int) -> pb.StepOperation:
    """Returns a match."""
    sequence = pb.Sequence(tokens=token_bytes, **base)  # type: ignore[arg-type]  # any field of it
    return pb.StepOperation(match=pb.MatchPrefixRequest(sequence=sequence, pin_id=pin_id))


def insert(reservation_id: int, token_bytes: bytes = PAGES) -> pb.StepOperation:
    """Returns an insert of whole pages."""
    sequence = pb.Sequence(tokens=token_bytes)
    return pb.StepOperation(
        insert=pb.InsertPrefixRequest(reservation_id=reservation_id, sequence=sequence)
    )


def release(*pin_ids: int) -> pb.StepOperation:
    """Returns a release of pins."""
    return pb.StepOperation(release=pb.ReleasePinsRequest(pin_ids=pin_ids))


def abort(*reservation_ids: int) -> pb.StepOperation:
    """Returns an abort of reservations."""
    return pb.StepOperation(abort=pb.AbortReservationRequest(reservation_ids=reservation_ids))


def reserve(reservation_id: int, page_count: int) -> pb.StepOperation:
    """Returns a reserve of one reservation."""
    request = pb.ReservePagesRequest()
    request.reservations.add(reservation_id=reservation_id, page_count=page_count)
    return pb.StepOperation(reserve=request)


def run(
    worker: Worker, namespace_id: bytes, operations: Sequence[pb.StepOperation]
) -> list[pb.StepResult]:
    """Returns the results of a step; raises Refused if the whole call is refused."""
    request = pb.RunStepRequest(
        caller=worker.caller(), namespace_id=namespace_id, operations=operations
    )
    answer: pb.RunStepResponse = worker.ask(worker.prefix_cache.RunStep, request)
    return list(answer.results)


def ends(results: Sequence[pb.StepResult]) -> list[str]:
    """Returns the kind of each result, or the reason of its error."""
    return [
        refusal_of_status(each.error).reason
        if each.HasField("error")
        else str(each.WhichOneof("result"))
        for each in results
    ]


def holds(worker: Worker) -> tuple[int, int]:
    """Returns how many pins and reservations the tenant has."""
    stats = worker.ask(worker.store.GetStats, store_pb2.GetStatsRequest())
    return stats.pin_count, stats.reservation_count


def test_later_operations_build_on_earlier_ones(server: Server) -> None:
    """One step reserves, publishes and matches a prompt, and gives everything back."""
    worker = server.worker()
    space = worker.open_namespace()
    step = [acquire(1, 2), insert(2), match(3), abort(2), reserve(4, 1), release(1, 3), abort(4)]
    results = run(worker, space, step)
    kinds = ["acquire", "insert", "match", "abort", "reserve", "release", "abort"]
    assert ends(results) == kinds
    assert results[0].acquire.match == pb.PrefixMatch()
    assert results[1].insert.published_page_count == 3
    assert results[2].match.match.matched_token_count == 3 * PAGE_TOKENS
    assert list(results[2].match.match.runs) == list(results[1].insert.runs)
    [grant] = results[4].reserve.grants
    assert grant.reservation_id == 4
    assert holds(worker) == (0, 0)


def test_each_operation_fails_by_itself(server: Server) -> None:
    """A failed operation has the error of its single call, and the next ones still run."""
    worker = server.worker()
    space = worker.open_namespace()
    wrong = [
        insert(9),
        match(1, base_pin_id=77),
        match(0),
        match(1, bytes(7)),
        reserve(5, 1000),
        pb.StepOperation(match=pb.MatchPrefixRequest(pin_id=1)),
    ]
    results = run(worker, space, [*wrong, match(1)])
    assert ends(results)[-1] == "match"
    assert holds(worker) == (0, 0)
    for operation, result in zip(wrong, results, strict=False):
        kind = str(operation.WhichOneof("operation"))
        single = getattr(operation, kind)
        single.caller.CopyFrom(worker.caller())
        if kind != "insert":
            single.namespace_id = space
        stub: Any = {
            "insert": worker.prefix_cache.InsertPrefix,
            "match": worker.prefix_cache.MatchPrefix,
            "reserve": worker.prefix_cache.ReservePages,
        }[kind]
        with pytest.raises(Refused) as caught:
            worker.ask(stub, single)
        assert caught.value == refusal_of_status(result.error)


def test_a_repeated_step_has_the_same_answers(server: Server) -> None:
    """A repeat answers the same, except under ids that the step itself released."""
    worker = server.worker()
    space = worker.open_namespace()
    step = [acquire(1, 2), insert(2), match(3)]
    first = run(worker, space, step)
    before = worker.ask(worker.store.GetStats, store_pb2.GetStatsRequest()).counters
    again = run(worker, space, step)
    after = worker.ask(worker.store.GetStats, store_pb2.GetStatsRequest()).counters
    assert again[1:] == first[1:]
    assert again[0].acquire.grant == first[0].acquire.grant
    assert after.inserted_page_count == before.inserted_page_count
    ending = [match(4), release(4), abort(2), release(3)]
    assert ends(run(worker, space, ending)) == ["match", "release", "abort", "release"]
    assert ends(run(worker, space, ending)) == ["TOMBSTONED", "release", "abort", "release"]
    assert holds(worker) == (0, 0)


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (pb.StepOperation(), "operation"),
        (pb.StepOperation(release=pb.ReleasePinsRequest(caller=pb.Caller())), "caller"),
        (
            pb.StepOperation(
                match=pb.MatchPrefixRequest(
                    namespace_id=bytes(16), sequence=pb.Sequence(tokens=PROMPT), pin_id=9
                )
            ),
            "namespace_id",
        ),
    ],
)
def test_an_operation_has_neither_caller_nor_namespace(
    server: Server, operation: pb.StepOperation, field: str
) -> None:
    """An operation with its own caller or namespace, or of no known kind, is refused by name."""
    worker = server.worker()
    results = run(worker, worker.open_namespace(), [operation, acquire(1, 2)])
    assert ends(results) == ["INVALID_FIELD", "acquire"]
    assert refusal_of_status(results[0].error).metadata["field"] == field


def test_a_step_is_bounded(start_server: Callable[..., Server]) -> None:
    """A step of more operations than a batch may have is refused as a whole."""
    worker = start_server(limits=Limits(max_batch_size=3)).worker()
    space = worker.open_namespace()
    assert ends(run(worker, space, [acquire(1, 2), match(3), match(4)])).count("match") == 2
    with pytest.raises(Refused) as caught:
        run(worker, space, [acquire(5, 6), match(7), match(8), release(1)])
    assert caught.value.reason == "LIMIT_EXCEEDED"
    assert caught.value.metadata == {"limit": "max_batch_size", "maximum": "3", "value": "4"}
    assert holds(worker) == (0, 1)
    assert ends(run(worker, space, [release(1, 2, 3, 4)])) == ["LIMIT_EXCEEDED"]


def test_the_answers_of_a_step_are_bounded(start_server: Callable[..., Server]) -> None:
    """Once the answers take half of a message, further operations fail and change nothing."""
    worker = start_server(limits=Limits(max_message_bytes=1200)).worker()
    space = worker.open_namespace()
    # Each answer has all slots of the reservation, however often it is asked for.
    results = run(worker, space, [reserve(1, 4)] * 23)
    done = ends(results).count("reserve")
    assert 1 < done < 23
    assert ends(results) == ["reserve"] * done + ["LIMIT_EXCEEDED"] * (23 - done)
    answers = [each.reserve.ByteSize() for each in results[:done]]
    assert sum(answers[:-1]) <= 600 < sum(answers)
    assert refusal_of_status(results[-1].error).metadata["limit"] == "max_message_bytes"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"caller": None}, "INVALID_FIELD"),
        ({"namespace_id": b"short"}, "INVALID_FIELD"),
        ({"namespace_id": b""}, "INVALID_FIELD"),
    ],
)
def test_a_malformed_step_runs_nothing(
    server: Server, changes: dict[str, Any], reason: str
) -> None:
    """A step without a caller or a namespace is refused as a whole."""
    worker = server.worker()
    fields: dict[str, Any] = {
        "caller": worker.caller(),
        "namespace_id": worker.open_namespace(),
        "operations": [acquire(1, 2)],
    }
    with pytest.raises(Refused) as caught:
        worker.ask(worker.prefix_cache.RunStep, pb.RunStepRequest(**(fields | changes)))
    assert caught.value.reason == reason
    assert holds(worker) == (0, 0)


def test_a_step_reaches_nothing_of_another_tenant(server: Server) -> None:
    """Another tenant's namespace, lease and reservation are as unknown as in single calls."""
    owner, other = server.worker(), server.worker(uid=3)
    space = owner.open_namespace()
    run(owner, space, [acquire(1, 2), insert(2)])
    step = [acquire(1, 2), match(3), reserve(4, 1), insert(2), release(1), abort(2)]
    missing = ["NAMESPACE_NOT_FOUND"] * 3 + ["RESERVATION_NOT_FOUND", "release", "abort"]
    assert ends(run(other, space, step)) == missing
    request = pb.RunStepRequest(caller=owner.caller(), namespace_id=space, operations=step)
    answer = other.ask(other.prefix_cache.RunStep, request)
    assert ends(answer.results) == ["LEASE_NOT_FOUND"] * 6
    assert holds(owner) == (0, 1)


def test_a_stale_caller_changes_nothing(server: Server) -> None:
    """Each operation of a step under another epoch is refused."""
    worker = server.worker()
    space = worker.open_namespace()
    run(worker, space, [acquire(1, 2)])
    worker.epoch = EPOCH - 1
    step = [acquire(3, 4), insert(2), abort(2)]
    assert ends(run(worker, space, step)) == ["STALE_EPOCH"] * 3
    assert holds(worker) == (0, 1)


def test_an_id_may_be_used_once_in_a_step(server: Server) -> None:
    """A second operation under the id of an earlier one fails as a second call does."""
    worker = server.worker()
    space = worker.open_namespace()
    worker.publish(space, PAGES, 9)
    other = tokens(*range(50, 63))
    results = run(worker, space, [match(1), match(1), match(1, PAGES), acquire(2, 1, other)])
    assert ends(results)[:3] == ["match", "match", "ID_REUSED"]
    assert results[0] == results[1]
    assert holds(worker)[0] == 1


def test_every_operation_counts_for_the_rate(server: Server) -> None:
    """A tenant's rate refuses the operations above it, except those that give something back."""
    worker = server.worker()
    space = worker.open_namespace()
    traffic, tenant = server.store.traffic, f"uid-{worker.uid}"
    before = traffic.requests(tenant).request_count
    # Two at once, and then none for half a minute.
    server.store.change_rates(QuotaTable(Quotas(requests_per_second=1 / 32)))
    results = run(worker, space, [acquire(1, 2), match(3), release(1), match(4), abort(2)])
    assert ends(results) == ["acquire", "QUOTA_EXCEEDED", "release", "QUOTA_EXCEEDED", "abort"]
    details = refusal_of_status(results[1].error).detail_types
    assert "google.rpc.RetryInfo" in details
    counts = traffic.requests(tenant)
    assert (counts.request_count - before, counts.refused_count) == (5, 2)
    with pytest.raises(Refused) as caught:
        run(worker, space, [match(5)])
    assert caught.value.reason == "QUOTA_EXCEEDED"


def test_other_calls_run_between_operations(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store's mutex is free between two operations of a step."""
    worker, other = server.worker(), server.worker(uid=3)
    space = worker.open_namespace()
    reached, go_on = Event(), Event()
    abort_all = server.store.abort

    def waits(*arguments: Any) -> None:  # noqa: ANN401 - whatever it takes
        reached.set()
        assert go_on.wait(30)
        abort_all(*arguments)

    monkeypatch.setattr(server.store, "abort", waits)
    found: list[pb.StepResult] = []
    thread = Thread(target=lambda: found.extend(run(worker, space, [acquire(1, 2), abort(2)])))
    thread.start()
    assert reached.wait(30)
    # The reservation of the first operation is there, and the second has not begun.
    stats = other.ask(other.store.GetStats, store_pb2.GetStatsRequest())
    assert stats.reservation_count == 0
    assert holds(worker) == (0, 1)
    go_on.set()
    thread.join(30)
    assert ends(found) == ["acquire", "abort"]


def test_an_operation_after_the_deadline_does_not_begin(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operations that begin after the call's deadline are refused, and change nothing."""
    worker = server.worker()
    space = worker.open_namespace()
    now = [0.0]
    release_all = server.store.release

    def takes_long(*arguments: Any) -> None:  # noqa: ANN401 - whatever it takes
        release_all(*arguments)
        now[0] += 100.0

    monkeypatch.setattr(server.store, "release", takes_long)
    later = property(lambda _: lambda: MONOTONIC() + now[0], lambda *_: None)
    monkeypatch.setattr("kvstore.rpc.pipeline.Pipeline.clock", later, raising=False)
    results = run(worker, space, [release(7), acquire(1, 2), abort(3)])
    assert ends(results) == ["release", "INVALID_FIELD", "INVALID_FIELD"]
    refused = refusal_of_status(results[1].error).metadata
    assert (refused["field"], refused["value"]) == ("deadline", "passed")
    assert holds(worker) == (0, 0)


def test_a_step_does_not_wait_for_a_disk(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader may begin a load for a match in a step, and has no time to wait for it."""
    # Without tier 3, or without pages to load, nobody is asked.
    monkeypatch.setattr(server.store._cache.state, "disk", DiskState())
    monkeypatch.setattr(server.store.tier3.loader, "locate", Mock())
    worker = server.worker()
    space = worker.open_namespace()
    heard: list[LoadTerms] = []
    monkeypatch.setattr(
        server.store.tier3.loader, "load", lambda *asked: heard.append(asked[4]) or DiskPart(0, 12)
    )
    results = run(worker, space, [match(1), acquire(3, 4)])
    assert len(heard) == 2
    assert all(each.own <= MONOTONIC() for each in heard)
    assert results[0].match.match.tier_3_token_count == 12
    assert results[1].acquire.match.tier_3_token_count == 12


def test_an_acquire_in_a_step_yields_to_a_prefill_before_it(server: Server) -> None:
    """A second acquire of the same prompt in a step yields to the first one."""
    worker = server.worker()
    space = worker.open_namespace()
    second = acquire(3, 4)
    second.acquire.yield_to_in_flight = True
    results = run(worker, space, [acquire(1, 2), second])
    assert results[0].acquire.HasField("grant")
    assert not results[1].acquire.HasField("grant")
    assert results[1].acquire.match.in_flight.token_count == 3 * PAGE_TOKENS
    assert holds(worker) == (0, 1)


def test_a_bug_in_one_operation_fails_that_one(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception becomes INTERNAL of its operation, with a line under the operation's method."""
    worker = server.worker()
    space = worker.open_namespace()
    monkeypatch.setattr(server.store, "insert", lambda *_, **__: 1 // 0)
    with capture_logs(processors=[merge_call]) as lines:
        results = run(worker, space, [acquire(1, 2), insert(2), abort(2)])
    assert ends(results) == ["acquire", "INTERNAL", "abort"]
    [line] = [each for each in lines if each["event"] == "request_failed"]
    assert line["method"] == PATH + "InsertPrefix"
    assert line["request_id"] == refusal_of_status(results[1].error).metadata["request_id"]
    handled = [each["method"] for each in lines if each["event"] == "request_handled"]
    assert [each.removeprefix(PATH) for each in handled if each.startswith(PATH)] == [
        *("AcquirePrefix", "InsertPrefix", "AbortReservation", "RunStep")
    ]
    assert len({each["request_id"] for each in lines if each["method"].startswith(PATH)}) == 1


def test_each_operation_is_timed_by_its_method(server: Server) -> None:
    """A step's operations are timed by method and outcome, beside the step itself."""
    server.store.call_times["lane"] = times = CallTimes()
    worker = server.worker()
    space = worker.open_namespace()
    request = pb.RunStepRequest(
        caller=worker.caller(),
        namespace_id=space,
        operations=[acquire(1, 2), insert(2), insert(9), match(3)],
    )
    near, far = socket.socketpair()
    with HotLanes(server.store, server.credentials, MONOTONIC) as lanes, near:
        lanes.take(far, party_of(worker))
        lane_call(near, METHODS.index(PATH + "RunStep"), request.SerializeToString())
    counted = {
        (path.removeprefix(PATH), outcome): counts.total
        for (path, outcome), counts in times.read().items()
    }
    assert counted == {
        ("AcquirePrefix", "OK"): 1,
        ("InsertPrefix", "OK"): 1,
        ("InsertPrefix", "RESERVATION_NOT_FOUND"): 1,
        ("MatchPrefix", "OK"): 1,
        ("RunStep", "OK"): 1,
    }


def test_a_step_of_many_sequences(server: Server) -> None:
    """Sixty-four sequences match and are released, in two steps."""
    worker = server.worker()
    space = worker.open_namespace()
    worker.publish(space, PAGES, 99)
    matched = run(worker, space, [match(each) for each in range(1, 65)])
    assert {each.match.match.matched_token_count for each in matched} == {3 * PAGE_TOKENS}
    assert holds(worker) == (64, 1)
    released = run(worker, space, [release(each) for each in range(1, 65)])
    assert ends(released) == ["release"] * 64
    assert holds(worker) == (0, 1)
