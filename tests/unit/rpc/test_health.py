"""Health by service name."""

from dataclasses import dataclass

import pytest
from grpc_health.v1 import health_pb2

from kvstore.rpc.health import Health

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
STALE_AFTER = 10.0


@dataclass
class Shown:
    """What a thread shows."""

    last_tick: float = 100.0
    alive: bool = True

    def is_alive(self) -> bool:
        """Return what the test says."""
        return self.alive


@dataclass
class World:
    """Two threads, a clock, and the health that follows from them."""

    reaper: Shown
    attach: Shown
    now: float = 100.0

    def __post_init__(self) -> None:
        self.health = Health(
            ["kvstore.v1.A", "kvstore.v1.B"],
            {"reaper": self.reaper, "attach": self.attach},
            clock=lambda: self.now,
            stale_after=STALE_AFTER,
        )

    def shown(self) -> set[int]:
        """Return what is said of all services together."""
        check = self.health.servicer.Check
        names = ("", "kvstore.v1.A", "kvstore.v1.B")
        return {check(health_pb2.HealthCheckRequest(service=name), None).status for name in names}


@pytest.fixture
def world() -> World:
    """Provide a health that was not looked at yet."""
    return World(Shown(), Shown())


def test_a_server_that_starts_is_not_serving(world: World) -> None:
    """Before the first look every service is NOT_SERVING, the empty name's included."""
    assert world.shown() == {NOT_SERVING}


def test_with_threads_that_tick_it_serves(world: World) -> None:
    """As long as every thread lives and ticked lately, all services are SERVING."""
    world.now += STALE_AFTER
    world.health.check()
    assert world.shown() == {SERVING}


@pytest.mark.parametrize("name", ["reaper", "attach"])
def test_a_silent_thread_ends_serving_until_it_ticks(world: World, name: str) -> None:
    """A thread that did not tick for too long makes all NOT_SERVING, until its next tick."""
    silent: Shown = getattr(world, name)
    for _ in range(2):
        world.health.check()
        assert world.shown() == {SERVING}
        world.now += 0.6 * STALE_AFTER
        for shown in (world.reaper, world.attach):
            shown.last_tick = world.now
        silent.last_tick = 100.0
    world.health.check()
    assert world.shown() == {NOT_SERVING}
    silent.last_tick = world.now
    world.health.check()
    assert world.shown() == {SERVING}


def test_a_thread_that_ended_ends_serving(world: World) -> None:
    """A thread that does not run any more makes all NOT_SERVING, however late it ticked."""
    world.health.check()
    world.attach.alive = False
    world.health.check()
    assert world.shown() == {NOT_SERVING}


def test_a_process_that_was_stopped_gets_a_moment(world: World) -> None:
    """When the look itself comes late, the threads are judged at the next one."""
    world.health.check()
    world.now += 10 * STALE_AFTER
    world.health.check()
    assert world.shown() == {SERVING}
    world.now += 1.0
    world.health.check()
    assert world.shown() == {NOT_SERVING}


def test_draining_is_for_good(world: World) -> None:
    """After draining began nothing that the threads show makes it SERVING again."""
    world.health.check()
    world.health.begin_draining()
    assert world.shown() == {NOT_SERVING}
    world.attach.alive = False
    world.health.check()
    world.attach.alive = True
    world.health.check()
    assert world.shown() == {NOT_SERVING}


def test_it_serves_at_once_and_can_be_closed(world: World) -> None:
    """Beginning looks at once; closing ends the thread, whether it was begun or not."""
    world.health.begin_serving()
    assert world.shown() == {SERVING}
    world.health.close()
    assert world.shown() == {NOT_SERVING}
    World(Shown(), Shown()).health.close()
