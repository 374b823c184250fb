"""The reaper and the grower: real threads."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from kvstore.core.values.requests import ReservationRequest
from kvstore.service.periodic_threads import Grower, Reaper
from stores.store_world import World
from wire.own_logs import own_logs

LIMIT = 30.0


class Signal:
    """Waits for announcements of a store."""

    def __init__(self, world: World) -> None:
        self._woken = threading.Condition()
        self._count = 0
        world.store.announcer.subscribe(self._wake)

    def _wake(self) -> None:
        with self._woken:
            self._count += 1
            self._woken.notify_all()

    def wait_for(self, count: int) -> bool:
        """Waits for that many announcements in all; returns whether they came."""
        with self._woken:
            return self._woken.wait_for(lambda: self._count >= count, LIMIT)


@pytest.fixture
def reap(world: World) -> Iterator[Callable[..., Reaper]]:
    """Provides a maker of running reapers."""
    running: list[Reaper] = []

    def make(*, interval: float) -> Reaper:
        running.append(Reaper(world.store, clock=world.clock, interval=interval))
        running[-1].start()
        return running[-1]

    yield make
    for each in running:
        each.close()


def test_leases_expire_by_themselves(world: World, reap: Callable[..., Reaper]) -> None:
    """A lease that is not renewed expires at a tick, and its unproven death stays unproven."""
    signal = Signal(world)
    caller = world.worker()
    reap(interval=0.01)
    world.clock.now += 11
    assert signal.wait_for(1)
    assert world.store.attached_process_ids() == {world.process_id(caller)}


def test_an_arena_that_runs_low_grows_without_waiting_for_a_tick(world: World) -> None:
    """With ticks an hour apart, a reserve that takes the last slots still has one come."""
    caller = world.worker()
    namespace_id = world.open_namespace(caller)
    signal = Signal(world)
    grower = Grower(world.store.growth, clock=world.clock, interval=3600.0)
    grower.start()
    with closing(grower):
        world.store.reserve(caller, namespace_id, [ReservationRequest(1, 0, 4)])
        assert signal.wait_for(1)
    assert len(world.store.extents(caller.identity)) == 2


def test_a_tick_that_fails_is_counted_and_logged_and_others_come(world: World) -> None:
    """An exception ends neither the tick nor the reaper; what did not fail is done."""
    world.worker()
    # A core that fails: a lease whose time to live is no number.
    next(iter(world.cache.table.leases.values())).ttl = None  # type: ignore[assignment]
    reaper = Reaper(world.store, clock=world.clock, interval=1.0)
    world.clock.now += 1
    with own_logs() as lines:
        reaper.tick()
    assert [line["event"] for line in lines] == ["reaper_failed"]
    assert (reaper.failure_count, reaper.last_tick) == (1, world.clock.now)


def test_a_reaper_shows_that_it_lives(world: World) -> None:
    """It is alive from its start to its close, and closing does not wait for a tick."""
    reaper = Reaper(world.store, clock=world.clock, interval=3600.0)
    assert not reaper.is_alive()
    reaper.start()
    with closing(reaper):
        assert reaper.is_alive()
    assert not reaper.is_alive()
