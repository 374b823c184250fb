"""Work in the background rests while calls come."""

from threading import Thread

import pytest

from kvstore import background
from kvstore.background import LONGEST, LOOK_EVERY, RECENT, REST, TURN, BackgroundShare, gently


class Machine:
    """Times that a test sets: the clock's, and the processor time of the current thread."""

    def __init__(self) -> None:
        self.now = 100.0
        self.worked = 0.0
        self.rests: list[float] = []
        self.share = BackgroundShare(lambda: self.now, lambda: self.worked, self.rest)

    def rest(self, seconds: float) -> None:
        """Lets the time of a rest pass."""
        self.rests.append(seconds)
        self.now += seconds

    def work(self, seconds: float) -> None:
        """Works so long, and then gives way."""
        self.now += seconds
        self.worked += seconds
        self.share.give_way()


@pytest.fixture
def machine() -> Machine:
    """Provides a thread that gave way once, at which its work is counted from."""
    machine = Machine()
    machine.share.give_way()
    return machine


def test_nothing_rests_while_no_call_comes(machine: Machine) -> None:
    """Work goes on without a rest before the first call, and some time after the last."""
    machine.work(1.0)
    machine.share.note_call()
    machine.now += RECENT
    machine.work(TURN)
    assert machine.rests == []


def test_work_rests_after_a_turn(machine: Machine) -> None:
    """A thread rests twice as long as it worked, once that is a turn."""
    machine.share.note_call()
    machine.work(TURN / 2)
    assert machine.rests == []
    machine.work(TURN)
    assert machine.rests == [pytest.approx(1.5 * TURN * REST)]


def test_no_rest_is_long(machine: Machine) -> None:
    """Work that cannot be divided is followed by a short rest all the same."""
    machine.now += 1.0
    machine.worked += 1.0
    machine.share.note_call()
    machine.share.give_way()
    assert machine.rests == [pytest.approx(LONGEST)]


def test_threads_share_their_part_of_the_processor(machine: Machine) -> None:
    """The rest of a thread begins after the rests of all others."""
    machine.share.note_call()
    begun = machine.now

    def rest(seconds: float) -> None:
        machine.rests.append(seconds)

    machine.share = BackgroundShare(lambda: machine.now, lambda: machine.worked, rest)
    machine.share.note_call()

    def work() -> None:
        machine.share.give_way()
        machine.worked += TURN
        machine.share.give_way()

    for _ in range(3):
        thread = Thread(target=work)
        thread.start()
        thread.join()
    assert machine.now == begun
    assert machine.rests == [pytest.approx(number * TURN * REST) for number in (1, 2, 3)]


def test_a_long_loop_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop has all items, and gives way after some of them."""
    rests: list[int] = []
    monkeypatch.setattr(background, "give_way", lambda: rests.append(1))
    items = range(2 * LOOK_EVERY + 1)
    assert list(gently(items)) == list(items)
    assert len(rests) == 2
    assert list(gently(items, 1)) == list(items)
    assert len(rests) == 2 + len(items)
