"""A flood slows only the flooder: tenants on a real server, with counts instead of times."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import Event, Semaphore

import grpc
import pytest

from kvstore.core.values.limits import Quotas, QuotaTable
from kvstore.rpc.server import MAX_CALLS, MAX_PENDING, THREAD_COUNT
from kvstore.service.tenancy.rate_limit import Requests
from kvstore.v1 import lease_pb2, prefix_cache_pb2, store_pb2
from kvstore_client.testing import wait_until
from stores.rpc_world import Refused, Server, Worker, refusal_of

FLOOD = MAX_CALLS + 500
RETRY_INFO = "google.rpc.RetryInfo"


class Flood:
    """Many calls of one worker at once, and their outcomes."""

    def __init__(self, worker: Worker, count: int, *, guess: bool = False) -> None:
        """Sends the calls. With ``guess`` each call has an unknown credential."""
        self.done = Semaphore(0)
        self.threads = worker.server.threads
        self.queue = ("tenant", f"uid-{worker.uid}")
        credential = worker.server.credentials.issue(worker.uid)
        credentials = [f"guess {k}" if guess else credential for k in range(count)]
        self.calls = [
            worker.store.GetStats.future(
                store_pb2.GetStatsRequest(),
                timeout=50,
                metadata=(("authorization", f"Bearer {each}"),),
            )
            for each in credentials
        ]
        for call in self.calls:
            call.add_done_callback(lambda _: self.done.release())

    def wait(self, count: int) -> None:
        """Waits until ``count`` more calls have ended."""
        for _ in range(count):
            assert self.done.acquire(timeout=60)

    def finished(self) -> int:
        """Returns the number of calls that have ended by now."""
        return sum(call.done() for call in self.calls)

    def refusals(self) -> list[Refused]:
        """Returns the calls that were refused by now."""
        errors = [call.exception() for call in self.calls if call.done()]
        return [refusal_of(each) for each in errors if isinstance(each, grpc.RpcError)]

    def reasons(self) -> set[str]:
        """Returns the reasons of the calls refused by now."""
        return {each.reason for each in self.refusals()}

    def under_way(self) -> int:
        """Returns how many calls of this worker's tenant wait, or have a thread."""
        return self.threads._counts.get(self.queue, 0)


@contextmanager
def standstill(server: Server) -> Iterator[None]:
    """Keeps all calls out of the store meanwhile, so busy threads stay busy."""
    with server.store._mutex:
        yield


def test_a_flood_is_refused_and_others_are_served(server: Server) -> None:
    """One tenant's calls fill its own queue: its calls beyond that are refused, and no others."""
    flooder, other = server.worker(uid=2), server.worker(uid=3)
    before = server.store.traffic.requests("uid-2").request_count
    with standstill(server):
        flood = Flood(flooder, FLOOD)
        most = MAX_CALLS // 3
        flood.wait(FLOOD - most)
        calm = Flood(other, 20)
        # How much of the flood had ended as each of them did.
        served_first: list[int] = []
        for call in calm.calls:
            call.add_done_callback(lambda _: served_first.append(flood.finished()))
        assert wait_until(lambda: calm.under_way() == 20)
    calm.wait(20)
    flood.wait(most)
    assert calm.refusals() == []
    refusals = flood.refusals()
    assert len(refusals) == FLOOD - most
    assert {each.code for each in refusals} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    metadata = {"quota": "calls_under_way", "maximum": str(most)}
    assert all((each.reason, each.metadata) == ("QUOTA_EXCEEDED", metadata) for each in refusals)
    assert all(RETRY_INFO in each.detail_types for each in refusals)
    # The others did not wait for all calls of the flooder.
    assert wait_until(lambda: len(served_first) == 20)
    assert max(served_first) < FLOOD
    asked = server.store.traffic.requests("uid-2")
    assert asked == Requests(before + FLOOD, FLOOD - most)


def test_a_flood_that_waits_to_be_taken_is_not_cancelled(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that wait for the one accepting thread are each answered, however far it is behind."""
    arrive, go_on = server.threads.arrive, Event()

    def late(queue: Hashable, *, always: bool = False) -> bool:
        assert go_on.wait(60)
        return arrive(queue, always=always)

    worker, count = server.worker(), 2 * MAX_CALLS
    assert count < MAX_PENDING
    monkeypatch.setattr(server.threads, "arrive", late)
    flood = Flood(worker, count)
    go_on.set()
    flood.wait(count)
    assert flood.reasons() <= {"QUOTA_EXCEEDED"}


def test_strangers_fill_no_queue_but_their_own(server: Server) -> None:
    """Calls without a known credential are bounded together, and cost those with one nothing."""
    worker = server.worker()
    # Five tenants, who leave no thread.
    busy = [server.worker(uid=uid) for uid in range(3, 8)]
    with standstill(server):
        stuck = [Flood(each, THREAD_COUNT) for each in busy]
        strangers = Flood(worker, MAX_CALLS + 1, guess=True)
        mine = Flood(worker, 1)
        # Before anybody else gets on, some of them were too many.
        assert wait_until(lambda: "QUOTA_EXCEEDED" in strangers.reasons())
    for flood in (*stuck, mine, strangers):
        flood.wait(len(flood.calls))
    assert all(flood.refusals() == [] for flood in (*stuck, mine))
    assert strangers.reasons() == {"CREDENTIAL_REQUIRED", "QUOTA_EXCEEDED"}


def ask_often(worker: Worker) -> None:
    """Makes more calls than any token bucket holds, as fast as possible."""
    for _ in range(1000):
        worker.ask(worker.store.GetStats, store_pb2.GetStatsRequest())


def test_over_the_rate_is_refused(start_server: Callable[..., Server]) -> None:
    """A tenant over its own rate is refused, except for calls that give something back."""
    quotas = QuotaTable(by_tenant={"uid-2": Quotas(requests_per_second=5.0)})
    server = start_server(quotas=quotas)
    hasty, other = server.worker(uid=2), server.worker(uid=3)
    with pytest.raises(Refused) as error:
        ask_often(hasty)
    assert error.value.reason == "QUOTA_EXCEEDED"
    assert error.value.metadata == {"quota": "requests_per_second", "maximum": "5"}
    assert RETRY_INFO in error.value.detail_types
    other.ask(other.store.GetStats, store_pb2.GetStatsRequest())
    for _ in range(10):
        request = lease_pb2.RenewLeaseRequest(lease_id=hasty.lease_id, store_epoch=hasty.epoch)
        hasty.ask(hasty.lease.RenewLease, request)
        release = prefix_cache_pb2.ReleasePinsRequest(caller=hasty.caller(), pin_ids=[1])
        hasty.ask(hasty.prefix_cache.ReleasePins, release)
    assert server.store.traffic.requests("uid-2").refused_count == 1
