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
    """What a thread shows."""

    last_tick: float = 100.0
    alive: bool = True

    def is_alive(self) -> bool:
        """Returns what the test says."""
        return self.alive


@dataclass
class World:
    """Two threads, a clock, and the health that follows from them."""

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
        """Counts what is called before each look."""
        self.looks += 1

    def beat(self) -> None:
        """Counts how often it was found alive."""
        self.heartbeats += 1

    def shown(self) -> set[bool]:
        """Returns what is said of all services together: whether it is ready."""
        return {self.said(name) for name in ("", READINESS, "kvstore.v1.A", "kvstore.v1.B")}

    def said(self, name: str) -> bool:
        """Returns what is said of a service."""
        return self.health.says(name)


@pytest.fixture
def world() -> World:
    """Provides a health that was not looked at yet."""
    return World(Shown(), Shown())


def test_a_server_that_starts_is_not_serving(world: World) -> None:
    """Before the first look every service is NOT_SERVING, the empty name's included."""
    assert world.shown() == {NOT_SERVING}


def test_with_threads_that_tick_it_serves(world: World) -> None:
    """As long as every thread lives and ticked lately, all services are SERVING."""
    world.now += STALE_AFTER
    world.health.check()
    assert world.shown() == {SERVING}


def test_what_failed_for_good_never_serves_again(world: World) -> None:
    """Neither ready nor alive, whatever the threads show, and without heartbeats."""
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


def test_a_process_that_hardly_gets_to_run_still_lives(world: World) -> None:
    """Looks that all come late judge nobody, and each is a heartbeat: it is not to be killed."""
    world.health.check()
    for looks in range(2, 6):
        world.now += 2 * STALE_AFTER
        world.health.check()
        assert world.heartbeats == looks


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


def test_it_lives_before_it_is_ready_and_after(world: World) -> None:
    """Liveness is SERVING from the start, while it is not ready, and while it drains."""
    assert world.said(LIVENESS) == SERVING
    world.health.check()
    world.health.begin_draining()
    world.health.check()
    assert world.said(LIVENESS) == SERVING
    assert world.said(READINESS) == NOT_SERVING
    assert (world.looks, world.heartbeats) == (2, 2)


def test_a_long_silence_is_death(world: World) -> None:
    """Silence costs readiness first and life much later, without a heartbeat from then on."""
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
    """Whoever looks for the cause of a stall finds file, line and function."""
    world.health.check()
    world.attach.alive = False
    with own_logs() as lines:
        world.health.check()
    assert [(each["event"], each["silent"]) for each in lines] == [("health_lost", ["attach"])]
    assert any("test_health.py" in place for place in lines[0]["stacks"]["MainThread"])


def test_it_outlives_a_look_that_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that looks is watched by nobody: it logs, and looks again."""
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
    """One that was added, as all others; and who asks in this process is told the same."""
    late = Shown()
    world.health.watch("late", late)
    world.health.check()
    assert world.health.says(READINESS)
    late.alive = False
    world.health.check()
    assert not world.health.says(READINESS)
    assert not world.health.says("nothing")
