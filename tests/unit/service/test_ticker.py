"""A thread that ticks."""

from threading import Semaphore
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


def test_another_pace_counts_at_once() -> None:
    """A thread that waits for an hour ticks at once, and again soon after."""
    ticks = Semaphore(0)
    ticker = Ticker("cook", (ticks.release,), clock=monotonic, interval=3600.0)
    ticker.start()
    ticker.pace(0.01)
    assert all(ticks.acquire(timeout=30.0) for _ in range(3))
    ticker.close()
