"""The time of one request's calls, by a clock that the test moves."""

from random import Random

import pytest

from kvstore_client import errors
from kvstore_client.calls.deadlines import Backoff, Deadline, StoreBudget, shared_budget
from kvstore_client.errors import StoreTimedOut


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        """Returns the time."""
        return self.now


def test_every_call_is_charged() -> None:
    """A budget pays for the time within calls, failed ones included, but not between them."""
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
    """A call's deadline is at most the rest of the budget."""
    clock = Clock()
    budget = StoreBudget(100.0, clock)
    with budget.spend(60.0) as deadline:
        assert 59.0 < deadline.remaining() <= 60.0
        clock.now += 60.0
    with budget.spend(60.0) as deadline:
        assert 39.0 < deadline.remaining() <= 40.0


def test_nothing_is_asked_after_it() -> None:
    """A call with a spent budget fails at once and says why."""
    clock = Clock()
    budget = StoreBudget(1.0, clock)
    with budget.spend(1.0):
        clock.now += 1.0
    with pytest.raises(errors.StoreUnavailable, match="waited 1 s"), budget.spend(1.0):
        pytest.fail("it was asked")


def test_what_several_wait_for_is_charged_to_each() -> None:
    """A shared call may use the largest rest, and each budget is charged for it once."""
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
    """The remaining time never exceeds the whole and never grows."""
    deadline = Deadline(60)
    first = deadline.remaining()
    assert 0 < deadline.remaining() <= first <= 60


def test_after_the_end_nothing_is_asked() -> None:
    """A passed deadline raises StoreTimedOut instead of returning zero."""
    with pytest.raises(StoreTimedOut):
        Deadline(0).remaining()


def test_waits_double_up_to_the_longest() -> None:
    """Each delay is between half and all of a bound, which doubles up to the longest."""
    backoff = Backoff(0.1, 0.5, Random(1))
    for bound in (0.1, 0.2, 0.4, 0.5, 0.5):
        assert bound / 2 <= backoff.delay() <= bound


def test_a_success_begins_anew() -> None:
    """After a reset the first delay is the shortest again."""
    backoff = Backoff(0.1, 10, Random(1))
    for _ in range(5):
        backoff.delay()
    backoff.reset()
    assert backoff.delay() <= 0.1


def test_two_clients_do_not_wait_in_step() -> None:
    """Two clients have different random delays."""
    assert [Backoff(1, 1).delay() for _ in range(8)] != [Backoff(1, 1).delay() for _ in range(8)]
