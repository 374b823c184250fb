"""Health by service name."""

from dataclasses import dataclass
from threading import Event

import pytest

from kvstore.rpc.health.watchdog import LIVENESS, READINESS, Health
from wire.own_logs import own_logs

SERVING, NOT_SERVING = True, False
STALE_AFTER = 10.0
DEAD_AFTER = 30.0


@dataclass
class Shown:
    """The state that a fake thread reports."""

    last_tick: float = 100.0
    alive: bool = True

    def is_alive(self) -> bool:
        """Returns the value that the test chose."""
        return self.alive


@dataclass
class World:
    """Two fake threads, a fake clock and the health computed from them."""

    reaper: Shown
    attach: Shown
    now: float = 100.0
    looks: int = 0
    heartbeats: int = 0

    def __post_init__(self) -> None:
        self.health = Health(
            ["kvstore.v1.A", "kvstore.v1.B"],
            {"reaper": self.reaper, "attach": self.attach},
            clock=lambda: self.now,
            looks=(self.look,),
            heartbeat=self.beat,
            stale_after=STALE_AFTER,
            dead_after=DEAD_AFTER,
        )

    def look(self) -> None:
        """Counts the calls that run before each check."""
        self.looks += 1

    def beat(self) -> None:
        """Counts the checks that found the store alive."""
        self.heartbeats += 1

    def shown(self) -> set[bool]:
        """Returns the status of all services together, which is readiness."""
        return {self.said(name) for name in ("", READINESS, "kvstore.v1.A", "kvstore.v1.B")}

    def said(self, name: str) -> bool:
        """Returns the status of one service."""
        return self.health.says(name)


@pytest.fixture
def world() -> World:
    """Provides a health object before its first check."""
    return World(Shown(), Shown())


def test_a_server_that_starts_is_not_serving(world: World) -> None:
    """Before the first check every service is NOT_SERVING, including the empty name."""
    assert world.shown() == {NOT_SERVING}


def test_with_threads_that_tick_it_serves(world: World) -> None:
    """All services are SERVING while every thread lives and ticked lately."""
    world.now += STALE_AFTER
    world.health.check()
    assert world.shown() == {SERVING}


def test_what_failed_for_good_never_serves_again(world: World) -> None:
    """After a permanent failure the store is neither ready nor alive, and sends no heartbeat."""
    world.health.check()
    assert (world.shown(), world.said(LIVENESS), world.heartbeats) == ({SERVING}, SERVING, 1)
    world.health.fail()
    for _ in range(2):
        assert (world.shown(), world.said(LIVENESS)) == ({NOT_SERVING}, NOT_SERVING)
        world.health.check()
        world.now += 2 * STALE_AFTER
        world.health.check()
    assert world.heartbeats == 1


@pytest.mark.parametrize("name", ["reaper", "attach"])
def test_a_silent_thread_ends_serving_until_it_ticks(world: World, name: str) -> None:
    """A thread that has not ticked for too long makes all NOT_SERVING until its next tick."""
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
    """A thread that ended makes all services NOT_SERVING, however recent its last tick is."""
    world.health.check()
    world.attach.alive = False
    world.health.check()
    assert world.shown() == {NOT_SERVING}


def test_a_process_that_was_stopped_gets_a_moment(world: World) -> None:
    """A check that itself comes late judges no thread; the next check does."""
    world.health.check()
    world.now += 10 * STALE_AFTER
    world.health.check()
    assert world.shown() == {SERVING}
    world.now += 1.0
    world.health.check()
    assert world.shown() == {NOT_SERVING}


def test_a_process_that_hardly_gets_to_run_still_lives(world: World) -> None:
    """Checks that all come late judge no thread, and each sends a heartbeat."""
    world.health.check()
    for looks in range(2, 6):
        world.now += 2 * STALE_AFTER
        world.health.check()
        assert world.heartbeats == looks


def test_draining_is_for_good(world: World) -> None:
    """After draining began, no state of the threads makes the service SERVING again."""
    world.health.check()
    world.health.begin_draining()
    assert world.shown() == {NOT_SERVING}
    world.attach.alive = False
    world.health.check()
    world.attach.alive = True
    world.health.check()
    assert world.shown() == {NOT_SERVING}


def test_it_serves_at_once_and_can_be_closed(world: World) -> None:
    """Starting checks at once. Closing ends the thread, even one that was never started."""
    world.health.begin_serving()
    assert world.shown() == {SERVING}
    world.health.close()
    assert world.shown() == {NOT_SERVING}
    World(Shown(), Shown()).health.close()


def test_it_lives_before_it_is_ready_and_after(world: World) -> None:
    """Liveness is SERVING from the start, also before readiness and during a drain."""
    assert world.said(LIVENESS) == SERVING
    world.health.check()
    world.health.begin_draining()
    world.health.check()
    assert world.said(LIVENESS) == SERVING
    assert world.said(READINESS) == NOT_SERVING
    assert (world.looks, world.heartbeats) == (2, 2)


def test_a_long_silence_is_death(world: World) -> None:
    """A silent thread costs readiness first, and liveness and the heartbeat much later."""
    seen = []
    while world.said(LIVENESS) == SERVING:
        world.now += 0.4 * STALE_AFTER
        world.attach.last_tick = world.now
        world.health.check()
        seen.append((world.said(READINESS), world.heartbeats))
    silence = world.now - world.reaper.last_tick
    assert DEAD_AFTER < silence <= DEAD_AFTER + STALE_AFTER
    assert {ready for ready, _ in seen[2:]} == {NOT_SERVING}
    assert world.heartbeats == len(seen) - 1
    world.reaper.last_tick = world.now
    world.health.check()
    assert (world.said(LIVENESS), world.said(READINESS)) == (SERVING, SERVING)


def test_a_loss_is_logged_with_where_each_thread_is(world: World) -> None:
    """The log of lost health has the stack of each thread, with file, line and function."""
    world.health.check()
    world.attach.alive = False
    with own_logs() as lines:
        world.health.check()
    assert [(each["event"], each["silent"]) for each in lines] == [("health_lost", ["attach"])]
    assert any("test_watchdog.py" in place for place in lines[0]["stacks"]["MainThread"])


def test_it_outlives_a_look_that_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checking thread logs an error in a check and checks again."""
    monkeypatch.setattr("kvstore.rpc.health.watchdog.INTERVAL", 0.001)
    failed, again = Event(), Event()

    def look() -> None:
        if world.looks == 1:  # the first look was that of begin_serving
            failed.set()
            world.looks += 1
            raise ValueError
        if failed.is_set():
            again.set()
        world.looks += 1

    world.health._looks = (look,)
    world.health.begin_serving()
    assert again.wait(30)
    world.health.close()


def test_what_is_watched_later_counts_too(world: World) -> None:
    """A thread that is added later counts too, and callers in this process get the same status."""
    late = Shown()
    world.health.watch("late", late)
    world.health.check()
    assert world.health.says(READINESS)
    late.alive = False
    world.health.check()
    assert not world.health.says(READINESS)
    assert not world.health.says("nothing")
