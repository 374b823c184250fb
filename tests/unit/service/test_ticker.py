"""A thread that ticks."""

from threading import Event, Semaphore
from time import monotonic

import pytest

from kvstore.service.periodic_threads import Ticker
from stores.store_world import ManualClock
from wire.own_logs import own_logs


@pytest.fixture
def clock() -> ManualClock:
    """Provides a clock that shows what the test says."""
    return ManualClock()


def test_work_that_fails_does_not_keep_other_work(clock: ManualClock) -> None:
    """An error is logged under the thread's name and counted, and the work after it is done."""
    done: list[int] = []

    def fail() -> None:
        raise RuntimeError

    ticker = Ticker("cook", (fail, lambda: done.append(1)), clock=clock, interval=1.0)
    with own_logs() as lines:
        ticker.tick()
    assert done == [1]
    assert [(line["event"], line["failure_count"]) for line in lines] == [("cook_failed", 1)]


def test_a_tick_is_seen(clock: ManualClock) -> None:
    """Silence is counted from the last tick, but for work that may take its time."""
    slow = [False]
    ticker = Ticker("cook", (), clock=clock, interval=1.0, excused=lambda: slow[0])
    clock.now += 5
    assert ticker.last_tick == clock.now - 5
    slow[0] = True
    assert ticker.last_tick == clock.now
    slow[0] = False
    ticker.tick()
    assert ticker.last_tick == clock.now


def test_work_is_gathered_before_a_tick(clock: ManualClock) -> None:
    """Work that comes within the time to gather is done in the same tick."""
    due, gathering, ticks = Event(), Event(), Semaphore(0)
    ticker = Ticker("cook", (ticks.release,), clock=clock, interval=3600.0, due=due, gather=3600.0)
    waits = ticker._closing.wait

    def gather(seconds: float) -> None:
        assert seconds == 3600.0
        gathering.set()
        more.wait(30.0)

    more = Event()
    ticker._closing.wait = gather  # type: ignore[assignment, method-assign]
    ticker.start()
    due.set()
    assert gathering.wait(30.0)
    due.set()
    assert not ticks.acquire(blocking=False)
    more.set()
    assert ticks.acquire(timeout=30.0)
    assert not due.is_set()
    ticker._closing.wait = waits  # type: ignore[method-assign]
    ticker.close()


def test_another_pace_counts_at_once() -> None:
    """A thread that waits for an hour ticks at once, and again soon after."""
    ticks = Semaphore(0)
    ticker = Ticker("cook", (ticks.release,), clock=monotonic, interval=3600.0)
    ticker.start()
    ticker.pace(0.01)
    assert all(ticks.acquire(timeout=30.0) for _ in range(3))
    ticker.close()
