"""Calls wait in queues, which get threads in turns, and none takes all the room."""

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from threading import Event, get_ident

import pytest

from kvstore.rpc.fair_queue import CallThreads

CAPACITY = 12


@pytest.fixture
def threads() -> Iterator[CallThreads]:
    """Provides one thread for twelve calls."""
    pool = CallThreads(1, CAPACITY)
    yield pool
    pool.shutdown()


@pytest.fixture
def busy(threads: CallThreads) -> Iterator[Event]:
    """Provides an event until which the thread is taken, by work that is no call."""
    go_on = Event()
    threads.submit(go_on.wait)
    yield go_on
    go_on.set()


def send(
    threads: CallThreads, queue: str, call: Callable[[], object], *, always: bool = False
) -> "Future[object] | None":
    """Submits a call as if it arrived. Returns its future, or None if it is refused."""
    admitted = threads.arrive((queue,), always=always)
    future = threads.submit(call)
    return future if admitted else None


def test_queues_get_threads_in_turns(threads: CallThreads, busy: Event) -> None:
    """One call of a queue waits for one call of each other, however many those have."""
    order: list[str] = []
    sent = [send(threads, "flood", lambda: order.append("flood")) for _ in range(3)]
    sent += [send(threads, "calm", lambda: order.append("calm")) for _ in range(2)]
    busy.set()
    for future in sent:
        assert future is not None
        future.result()
    assert order == ["flood", "calm", "flood", "calm", "flood"]


def test_a_queue_alone_has_a_third_of_the_room(threads: CallThreads, busy: Event) -> None:
    """Half as many as room is left for; what gives back has half of the room."""
    assert threads.largest_queue == 4
    del busy
    ordinary = [send(threads, "a", int) for _ in range(10)]
    # The work that keeps the thread is one of twelve.
    assert sum(each is not None for each in ordinary) == 4
    giving_back = [send(threads, "a", int, always=True) for _ in range(10)]
    assert sum(each is not None for each in giving_back) == 2


def test_room_is_left_however_many_queues_are_full(threads: CallThreads, busy: Event) -> None:
    """The call of the fourth queue is taken, after three that wanted everything."""
    del busy
    for queue in ("a", "b"):
        for _ in range(2 * CAPACITY):
            send(threads, queue, int, always=True)
    assert send(threads, "c", int) is not None


def test_what_is_done_makes_room(threads: CallThreads) -> None:
    """A call that ended frees its room, whether it returned or raised."""
    for _ in range(5 * CAPACITY):
        future = send(threads, "a", int)
        failing = send(threads, "a", lambda: 1 / 0)
        assert future is not None
        assert failing is not None
        assert future.result() == 0
        assert isinstance(failing.exception(), ZeroDivisionError)


def test_what_was_cancelled_makes_room_and_is_not_run(threads: CallThreads, busy: Event) -> None:
    """A call that is cancelled while it waits never runs and frees its room."""
    ran: list[int] = []
    future = send(threads, "a", lambda: ran.append(1))
    assert future is not None
    assert future.cancel()
    busy.set()
    after = send(threads, "a", int)
    assert after is not None
    after.result()
    assert ran == []
    with pytest.raises(CancelledError):
        future.result()


def test_a_refused_call_is_run_where_it_is_submitted(threads: CallThreads, busy: Event) -> None:
    """A refused call runs in the thread that submits it, because all pool threads may be busy."""
    while threads.arrive(("a",)):
        threads.submit(int)
    assert threads.submit(get_ident).result() == get_ident()
    assert not busy.is_set()


def test_no_queue_has_all_threads() -> None:
    """One queue's calls that do not end take half of the threads; the next two find one each."""
    go_on = Event()
    pool = CallThreads(4, 64)
    try:
        stuck = [send(pool, "stuck", go_on.wait) for _ in range(8)]
        also_stuck = [send(pool, "also stuck", go_on.wait) for _ in range(4)]
        free = send(pool, "free", int)
        assert free is not None
        assert free.result(timeout=30) == 0
        assert not any(each.done() for each in stuck + also_stuck if each is not None)
    finally:
        go_on.set()
        pool.shutdown()
    assert all(each is not None and each.done() for each in stuck + also_stuck)


def test_idle_is_when_no_call_waits_or_runs(threads: CallThreads, busy: Event) -> None:
    """A server that gives its memory away waits for that, since calls may copy pages."""
    waiting = send(threads, "a", int)
    assert not threads.wait_idle(0)
    busy.set()
    assert threads.wait_idle(30)
    assert waiting is not None
    assert waiting.done()
