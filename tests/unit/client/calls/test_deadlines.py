"""The time of one request's calls, by a clock that the test moves."""

from random import Random

import pytest

from kvstore_client import errors
from kvstore_client.calls.deadlines import Backoff, Deadline, StoreBudget, shared_budget
from kvstore_client.errors import StoreTimedOut


class Clock:
    """Shows what the test says."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        """Returns the time."""
        return self.now


def test_every_call_is_charged() -> None:
    """Time within calls counts, time between them does not, and a call that fails counts too."""
    clock = Clock()
    budget = StoreBudget(10.0, clock)
    with budget.spend(5.0):
        clock.now += 3.0
    clock.now += 100.0

    def fail() -> None:
        with budget.spend(5.0):
            clock.now += 2.0
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert budget.spent_seconds == 5.0


def test_no_call_may_take_more_than_is_left() -> None:
    """A call's deadline is its own, or what is left of the budget where that is less."""
    clock = Clock()
    budget = StoreBudget(100.0, clock)
    with budget.spend(60.0) as deadline:
        assert 59.0 < deadline.remaining() <= 60.0
        clock.now += 60.0
    with budget.spend(60.0) as deadline:
        assert 39.0 < deadline.remaining() <= 40.0


def test_nothing_is_asked_after_it() -> None:
    """Once it is spent a call fails at once, and says for what."""
    clock = Clock()
    budget = StoreBudget(1.0, clock)
    with budget.spend(1.0):
        clock.now += 1.0
    with pytest.raises(errors.StoreUnavailable, match="waited 1 s"), budget.spend(1.0):
        pytest.fail("it was asked")


def test_what_several_wait_for_is_charged_to_each() -> None:
    """The call may take what the largest has left; one that is named twice is charged once."""
    clock = Clock()
    small, large = StoreBudget(1.0, clock), StoreBudget(8.0, clock)
    large.spent_seconds = 3.0

    def fail() -> None:
        with shared_budget([small, large, small]) as shared:
            assert shared.left == 5.0
            shared.spent_seconds = 2.0
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (small.spent_seconds, large.spent_seconds) == (2.0, 5.0)
    assert (small.left, large.left) == (-1.0, 3.0)
    with shared_budget([small]) as shared, pytest.raises(errors.StoreUnavailable):
        shared.spend(1.0).__enter__()


def test_what_is_left_shrinks() -> None:
    """The rest is never more than the whole, and never grows."""
    deadline = Deadline(60)
    first = deadline.remaining()
    assert 0 < deadline.remaining() <= first <= 60


def test_after_the_end_nothing_is_asked() -> None:
    """A deadline that passed is a timeout, and no call with no time."""
    with pytest.raises(StoreTimedOut):
        Deadline(0).remaining()


def test_waits_double_up_to_the_longest() -> None:
    """Each wait is between half and all of a bound that doubles and then stays."""
    backoff = Backoff(0.1, 0.5, Random(1))
    for bound in (0.1, 0.2, 0.4, 0.5, 0.5):
        assert bound / 2 <= backoff.delay() <= bound


def test_a_success_begins_anew() -> None:
    """After a reset the first wait is the first again."""
    backoff = Backoff(0.1, 10, Random(1))
    for _ in range(5):
        backoff.delay()
    backoff.reset()
    assert backoff.delay() <= 0.1


def test_two_clients_do_not_wait_in_step() -> None:
    """Without a seed the waits of two clients differ."""
    assert [Backoff(1, 1).delay() for _ in range(8)] != [Backoff(1, 1).delay() for _ in range(8)]
