"""The attach thread's loop."""

import os
import selectors
from collections.abc import Iterator
from contextlib import closing
from threading import Thread

import pytest

from kvstore.rpc.attach.event_loop import SWEEP_FROM, EventLoop, Timer
from kvstore.service.clock import MONOTONIC
from processes.in_memory import count_of
from wire.own_logs import own_logs

LIMIT = 30.0


class Rig:
    """A loop that stops when it was woken, and a pipe to watch."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.loop = EventLoop(MONOTONIC, self.woken)
        self.readable, self.writable = os.pipe()

    def woken(self) -> None:
        """Notes that the loop was woken."""
        self.calls.append("woken")

    def note(self) -> None:
        """Reads the pipe, notes the bytes and stops the loop."""
        self.calls.append(os.read(self.readable, 99).decode())
        self.loop.stop()

    def close(self) -> None:
        """Closes everything."""
        self.loop.close()
        os.close(self.readable)
        os.close(self.writable)


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Provides a loop."""
    with closing(Rig()) as made:
        yield made


def test_a_descriptor_that_is_ready_has_its_action_called(rig: Rig) -> None:
    """The loop waits for a watched descriptor and calls its action."""
    rig.loop.watch(rig.readable, rig.note)
    os.write(rig.writable, b"data")
    rig.loop.run()
    assert rig.calls == ["data"]


def test_watching_again_replaces_what_was_watched(rig: Rig) -> None:
    """Watching a descriptor again replaces its action and events."""
    rig.loop.watch(rig.writable, rig.woken, selectors.EVENT_READ)
    rig.loop.watch(rig.writable, rig.loop.stop, selectors.EVENT_WRITE)
    rig.loop.run()
    assert rig.calls == []


def test_a_forgotten_descriptor_is_left_alone(rig: Rig) -> None:
    """The loop does not wait for a forgotten descriptor, which may be forgotten twice."""
    rig.loop.watch(rig.readable, rig.note)
    rig.loop.forget(rig.readable)
    rig.loop.forget(rig.readable)
    os.write(rig.writable, b"data")
    rig.loop.at(0, rig.loop.stop)
    rig.loop.run()
    assert rig.calls == []


def test_moments_come_in_their_order(rig: Rig) -> None:
    """Timed actions run at their time, the earliest first, and equal times in the calls' order."""
    now = MONOTONIC()
    rig.loop.at(now + 0.02, rig.loop.stop)
    rig.loop.at(now, lambda: rig.calls.append("second"))
    rig.loop.at(now, lambda: rig.calls.append("third"))
    rig.loop.at(now - 1, lambda: rig.calls.append("first"))
    rig.loop.run()
    assert rig.calls == ["first", "second", "third"]
    assert MONOTONIC() >= now + 0.02


def test_a_cancelled_moment_does_not_come(rig: Rig) -> None:
    """Cancelling a timed action releases it at once, and cancelling again changes nothing."""
    now = MONOTONIC()
    timers = [rig.loop.at(now, lambda: rig.calls.append("never")) for _ in range(3)]
    rig.loop.at(now, rig.loop.stop)
    for timer in [*timers, *timers]:
        rig.loop.cancel(timer)
        assert timer.action is None
    rig.loop.run()
    assert rig.calls == []


def test_a_moment_that_came_can_be_cancelled_no_more(rig: Rig) -> None:
    """Cancelling a timed action after it ran does nothing."""
    timer = rig.loop.at(MONOTONIC(), rig.loop.stop)
    rig.loop.run()
    assert timer.action is None
    rig.loop.cancel(timer)


def test_moments_made_and_cancelled_leave_nothing(rig: Rig) -> None:
    """The loop keeps few of many cancelled actions, and runs the others in order."""
    now = MONOTONIC()
    rig.loop.at(now + 0.02, rig.loop.stop)
    rig.loop.at(now - 1, lambda: rig.calls.append("first"))
    rig.loop.at(now, lambda: rig.calls.append("second"))
    before = count_of(Timer)
    for _ in range(1000):
        rig.loop.cancel(rig.loop.at(now + 1e6, rig.loop.stop))
    assert count_of(Timer) <= before + SWEEP_FROM + 3
    rig.loop.run()
    assert rig.calls == ["first", "second"]


def test_many_wake_ups_are_one(rig: Rig) -> None:
    """Many wake-ups before the loop runs count as one."""
    for _ in range(3):
        rig.loop.wake()
    rig.loop.at(0, rig.loop.stop)
    rig.loop.run()
    assert rig.calls.count("woken") == 1


def test_another_thread_wakes_and_stops_the_loop(rig: Rig) -> None:
    """Another thread can stop a loop that waits for nothing, at once."""
    thread = Thread(target=rig.loop.run)
    thread.start()
    rig.loop.stop()
    thread.join(LIMIT)
    assert not thread.is_alive()


def test_an_action_that_fails_does_not_end_the_loop(rig: Rig) -> None:
    """An exception is logged and counted, and the next action is called."""

    def fail() -> None:
        raise ZeroDivisionError

    rig.loop.at(0, fail)
    rig.loop.at(1, rig.loop.stop)
    with own_logs() as lines:
        rig.loop.run()
    assert [line["event"] for line in lines] == ["attach_failed"]
    assert rig.loop.failure_count == 1


def test_the_loop_shows_that_it_gets_round(rig: Rig) -> None:
    """The loop's last tick is by its clock and advances as the loop runs."""
    before = rig.loop.last_tick
    rig.loop.at(0, rig.loop.stop)
    rig.loop.run()
    assert before <= rig.loop.last_tick <= MONOTONIC()


def test_waking_a_closed_loop_does_nothing() -> None:
    """A wake-up after the loop's end writes nothing to a reused descriptor."""
    rig = Rig()
    rig.close()
    rig.loop.wake()
    assert rig.calls == []
