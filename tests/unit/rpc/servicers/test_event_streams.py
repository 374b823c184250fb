"""WatchEvents over a real server: the events that each caller gets, and the end of a watch."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import grpc
import pytest

from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Caller
from kvstore.rpc.server import THREAD_COUNT
from kvstore.v1 import store_pb2 as pb
from stores.rpc_world import ADMIN_UID, EPOCH, Refused, Server, Worker, refusal_of, tokens, watch

FIRST = tokens(*range(8))
SECOND = tokens(*range(100, 108))
ALONE, BEFORE = pb.WatchEventsRequest.HISTORY_ALONE, pb.WatchEventsRequest.HISTORY_FIRST


def kinds(events: Iterator[pb.WatchEventsResponse]) -> list[str]:
    """Returns the kinds of some events."""
    return [str(each.WhichOneof("event")) for each in events]


def watchers() -> int:
    """Returns the number of threads that send events to watchers."""
    return sum(each.name.startswith("kvstore-watcher") for each in threading.enumerate())


@contextmanager
def watching(worker: Worker, **options: Any) -> Iterator[Any]:  # noqa: ANN401 - as ``watch`` has them
    """Watches events while the block runs."""
    call = watch(worker, **options)
    try:
        yield call
    finally:
        call.cancel()


def ended(call: Any) -> Any:  # noqa: ANN401 - gRPC's error is its call
    """Returns the error that ends a watch, after reading all its events."""
    with pytest.raises(grpc.RpcError) as caught:
        for _ in call:
            pass
    return caught.value


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    """Checks after each test that no watcher thread is left."""
    yield
    for each in threading.enumerate():
        if each.name.startswith("kvstore-watcher"):
            each.join(30)
    assert watchers() == 0


def test_a_watch_tells_what_happens(server: Server) -> None:
    """Events come in order, numbered from 1, with time, tenant and place, and without token ids."""
    worker = server.worker()
    with watching(worker) as call:
        namespace_id = worker.open_namespace()
        worker.publish(namespace_id, FIRST, 1)
        opened, inserted = islice(call, 2)
    assert (opened.sequence_number, inserted.sequence_number) == (1, 2)
    assert (opened.tenant, opened.lost_event_count) == ("uid-2", 0)
    assert opened.namespace_changed.namespace_id == namespace_id
    assert opened.namespace_changed.change == pb.NamespaceEvent.CHANGE_OPENED
    pages = inserted.pages_inserted
    assert (pages.namespace_id, pages.start_page, pages.page_count) == (namespace_id, 0, 2)
    assert (pages.tier, pages.cause) == (1, pb.PagesEvent.CAUSE_INSERTED)
    assert len(pages.path_digest) == 16
    assert 0 < inserted.uptime.ToNanoseconds() < 1e12
    assert FIRST[4:8] not in inserted.SerializeToString()


def test_the_end_of_things_is_told_too(server: Server) -> None:
    """Watchers are told of removed pages, a deleted namespace and an ended lease."""
    worker, other = server.worker(), server.worker()
    namespace_id = worker.open_namespace()
    worker.publish(namespace_id, FIRST, 1)
    with watching(other) as call:
        request = pb.EvictPrefixRequest(namespace_id=namespace_id, tokens=FIRST)
        worker.ask(worker.store.EvictPrefix, request)
        worker.ask(
            worker.store.DeleteNamespace, pb.DeleteNamespaceRequest(namespace_id=namespace_id)
        )
        server.store.process_died(worker.number)
        told = list(islice(call, 4))
    assert kinds(iter(told)) == [
        "pages_removed",
        "pages_removed",
        "namespace_changed",
        "lease_changed",
    ]
    assert [each.pages_removed.cause for each in told[:2]] == [
        pb.PagesEvent.CAUSE_REMOVED,
        pb.PagesEvent.CAUSE_NAMESPACE_DELETED,
    ]
    assert told[-1].lease_changed.lease_id == worker.lease_id
    assert told[-1].lease_changed.display_name == "worker"
    assert told[-1].lease_changed.change == pb.LeaseEvent.CHANGE_ENDED


def test_a_tenant_is_told_of_its_own_alone(server: Server) -> None:
    """A tenant watches only its own events, an admin all, or those of one namespace it may see."""
    worker, stranger = server.worker(), server.worker(uid=3)
    admin = server.worker(uid=ADMIN_UID)
    mine, theirs = worker.open_namespace(), stranger.open_namespace()
    with pytest.raises(Refused) as caught:
        watch(worker, namespace_id=theirs)
    assert caught.value.reason == "NAMESPACE_NOT_FOUND"
    with (
        watching(worker) as own,
        watching(admin) as every,
        watching(admin, namespace_id=theirs) as one,
    ):
        stranger.publish(theirs, SECOND, 1)
        worker.publish(mine, FIRST, 1)
        [told] = islice(own, 1)
        assert (told.tenant, told.pages_inserted.namespace_id) == ("uid-2", mine)
        assert [each.tenant for each in islice(every, 2)] == ["uid-3", "uid-2"]
        stranger.publish(theirs, FIRST, 2)
        assert [each.tenant for each in islice(one, 2)] == ["uid-3", "uid-3"]


def test_what_is_remembered_may_come_first_or_alone(server: Server) -> None:
    """A watch may get past events first or alone. Paths have digests from the first watch on."""
    worker = server.worker()
    namespace_id = worker.open_namespace()
    worker.publish(namespace_id, FIRST, 1)
    before = list(watch(worker, history=ALONE))
    assert kinds(iter(before)) == ["lease_changed", "namespace_changed", "pages_inserted"]
    assert before[-1].pages_inserted.path_digest == b""
    with watching(worker, history=BEFORE) as call:
        worker.publish(namespace_id, SECOND, 2)
        told = list(islice(call, 4))
    assert told[:3] == before
    assert len(told[3].pages_inserted.path_digest) == 16


def test_a_history_that_is_unknown_is_refused(server: Server) -> None:
    """An unknown history value and a malformed namespace id are refused."""
    worker = server.worker()
    for change in ({"history": 7}, {"namespace_id": b"short"}):
        with pytest.raises(Refused) as caught:
            watch(worker, **change)  # type: ignore[arg-type]
        assert caught.value.reason == "INVALID_FIELD"


def come_and_go(server: Server, worker: Worker, numbers: range) -> int:
    """Grants and revokes leases with long names. Returns the number of events that this makes."""
    identity = server.credentials.identity_of(worker.uid)
    for number in numbers:
        caller = Caller(identity, (1 << 64 | number).to_bytes(16), b"s" * 16, EPOCH)
        server.store.grant(caller, ttl=None, display_name="n" * 250, features=())
        server.store.revoke(caller)
    return 2 * len(numbers)


def test_many_events_are_one_answer_for_who_wants_that(server: Server) -> None:
    """Events come together if the request allows it, and one by one otherwise; they are equal."""
    worker = server.worker()
    come_and_go(server, worker, range(20))
    single = list(watch(worker, history=ALONE))
    [answer] = watch(worker, history=ALONE, batches=True)
    assert len(single) == 41
    assert list(answer.batch.events) == single
    assert [each.sequence_number for each in single] == list(range(1, 42))
    assert (answer.sequence_number, answer.tenant) == (0, "")


def test_an_event_alone_is_no_batch(server: Server) -> None:
    """One event comes as itself."""
    worker = server.worker()
    [granted] = watch(worker, history=ALONE, batches=True)
    assert granted.WhichOneof("event") == "lease_changed"
    assert granted.sequence_number == 1


def test_a_watcher_that_takes_nothing_loses_the_oldest(start_server: Callable[..., Server]) -> None:
    """A slow watcher's queue is bounded, counts the events it lost, and delays nobody else."""
    server = start_server(limits=Limits(max_waiting_events=50))
    worker = server.worker()
    with watching(worker) as hung:
        made = come_and_go(server, worker, range(3000))
        with watching(worker) as other:
            made += come_and_go(server, worker, range(3000, 3001))
            assert kinds(islice(other, 2)) == ["lease_changed", "lease_changed"]
        lost = 0
        for told, event in enumerate(hung, start=1):
            assert event.sequence_number == told
            lost += event.lost_event_count
            if told + lost == made:
                break
    assert lost > 0


def test_watches_take_no_thread_of_the_calls(start_server: Callable[..., Server]) -> None:
    """Calls are answered as usual while there are more watches than call threads."""
    count = THREAD_COUNT + 2
    server = start_server(limits=Limits(max_watchers=count))
    worker = server.worker()
    calls = [watch(worker) for _ in range(count)]
    assert watchers() == count
    assert len(worker.open_namespace()) == 16
    for each in calls:
        assert kinds(islice(each, 1)) == ["namespace_changed"]
        each.cancel()


def test_those_that_look_back_and_take_nothing_are_few(start_server: Callable[..., Server]) -> None:
    """The number of watches of past events is limited, because each occupies a thread."""
    # More bytes than a connection sends to somebody who takes nothing.
    server = start_server(limits=Limits(max_watchers=3, max_remembered_events=6000))
    worker = server.worker()
    come_and_go(server, worker, range(3000))
    calls = [watch(worker, history=ALONE) for _ in range(3)]
    with pytest.raises(Refused) as caught:
        watch(worker, history=ALONE)
    assert caught.value.reason == "QUOTA_EXCEEDED"
    assert watchers() == 3
    for each in calls:
        each.cancel()


def test_a_watch_ends_with_its_time(server: Server) -> None:
    """A watch ends at its deadline, as any call does."""
    worker = server.worker()
    authorization = ("authorization", f"Bearer {server.credentials.issue(worker.uid)}")
    # What it is told first may come too late for that.
    request = pb.WatchEventsRequest()
    error = ended(worker.store.WatchEvents(request, timeout=0.2, metadata=(authorization,)))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_place_is_given_back(start_server: Callable[..., Server]) -> None:
    """A watch that its client cancels makes room for another one."""
    server = start_server(limits=Limits(max_watchers=1))
    worker = server.worker()
    for _ in range(3):
        call = watch(worker)
        with pytest.raises(Refused) as caught:
            watch(worker)
        assert caught.value.reason == "QUOTA_EXCEEDED"
        call.cancel()
        for each in threading.enumerate():
            if each.name.startswith("kvstore-watcher"):
                each.join(30)


def test_a_store_that_stops_ends_its_watches(server: Server) -> None:
    """A drain refuses new watches, and the stop ends the others as UNAVAILABLE."""
    worker = server.worker()
    call = watch(worker)
    server.store.begin_draining()
    with pytest.raises(Refused) as caught:
        watch(worker)
    assert caught.value.reason == "STORE_DRAINING"
    server.store.process_died(worker.number)
    assert kinds(islice(call, 1)) == ["lease_changed"]
    server.store.events.close()
    error = ended(call)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert refusal_of(error).reason == "STORE_DRAINING"


def test_a_watcher_that_takes_nothing_keeps_no_server_from_ending(
    start_server: Callable[..., Server],
) -> None:
    """The server stops although the thread of a slow watcher is still waiting for its client."""
    servers: list[grpc.Server] = []
    server = start_server(bind=servers.append)
    worker = server.worker()
    with watching(worker):
        come_and_go(server, worker, range(3000))
        server.store.events.close()
        assert watchers() == 1
        [ending] = servers
        assert ending.stop(0.2).wait(30)
        for each in threading.enumerate():
            if each.name.startswith("kvstore-watcher"):
                each.join(30)
        assert watchers() == 0


def test_a_request_that_does_not_come_takes_a_thread_for_a_moment(server: Server) -> None:
    """A watch whose request never arrives is cancelled before its deadline and leaves no thread."""
    worker = server.worker()
    authorization = ("authorization", f"Bearer {server.credentials.issue(worker.uid)}")
    send: Any = server.channel.stream_stream("/kvstore.v1.StoreService/WatchEvents")
    silent = threading.Event()

    def requests() -> Iterator[bytes]:
        silent.wait(30)
        yield from ()

    call = send(requests(), timeout=30, metadata=(authorization,))
    error = ended(call)
    silent.set()
    assert error.code() is grpc.StatusCode.CANCELLED
    assert watchers() == 0
