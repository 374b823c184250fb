"""The probes by which the store notices that calls stop getting through."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock

import pytest

from kvstore.rpc.health.probes import OwnerProbe, PoolProbe


def test_the_owner_ticks_when_its_mutex_can_be_had() -> None:
    """The owner's probe ticks only if it gets the mutex in time."""
    now, mutex = 1.0, Lock()

    def responds(timeout: float) -> bool:
        if not mutex.acquire(timeout=timeout):
            return False
        mutex.release()
        return True

    probe = OwnerProbe(responds, lambda: now, patience=0.01)
    now = 2.0
    with mutex:
        probe.look()
    assert probe.last_tick == 1.0
    probe.look()
    assert probe.last_tick == 2.0
    assert probe.is_alive()


def test_how_long_the_owner_s_mutex_took_is_counted() -> None:
    """Each wait for the owner's mutex is counted, whether the probe got the mutex or gave up."""
    now = 1.0

    def responds(timeout: float) -> bool:
        nonlocal now
        now += 0.002 if now < 2 else timeout
        return now < 2

    probe = OwnerProbe(responds, lambda: now, patience=0.25)
    probe.look()
    now = 2.0
    probe.look()
    waits = probe.waits.read()
    assert waits.total == 2
    assert waits.seconds == pytest.approx(0.252)


def test_the_pool_ticks_when_a_thread_is_there() -> None:
    """The pool's probe queues one task while all threads are busy, and ticks when it runs."""
    now, busy, go_on = 1.0, Event(), Event()

    def hang() -> None:
        busy.set()
        go_on.wait(30)

    with ThreadPoolExecutor(1) as pool:
        probe = PoolProbe(pool, lambda: now)
        pool.submit(hang)
        assert busy.wait(30)
        now = 2.0
        for _ in range(3):
            probe.look()
        assert probe.last_tick == 1.0
        assert pool._work_queue.qsize() == 1
        go_on.set()
        pool.submit(lambda: None).result(30)
        assert probe.last_tick == 2.0
    probe.look()  # the pool is shut down: the server stops
    assert probe.is_alive()
