"""A value that is made anew when it has become too old."""

from collections.abc import Callable

import pytest

from kvstore.page.recent import Recent
from stores.store_world import ManualClock


def counted(clock: ManualClock, cost: float = 0.0) -> Callable[[], int]:
    """Returns what counts how often it is called, each time for so many seconds."""
    calls: list[None] = []

    def make() -> int:
        calls.append(None)
        clock.now += cost
        return len(calls)

    return make


def test_it_is_made_once_in_its_time() -> None:
    """However often it is asked for."""
    clock = ManualClock()
    recent = Recent(counted(clock), clock, max_age=1.0)
    assert [recent.get(), recent.get()] == [1, 1]
    clock.now += 0.9
    assert recent.get() == 1
    clock.now += 0.1
    assert [recent.get(), recent.get()] == [2, 2]


def test_what_takes_long_is_made_seldom() -> None:
    """A value that took two seconds is kept for ten times as long."""
    clock = ManualClock()
    recent = Recent(counted(clock, cost=2.0), clock, max_age=1.0, rest=10.0)
    assert recent.get() == 1
    clock.now += 19.9
    assert recent.get() == 1
    clock.now += 0.1
    assert recent.get() == 2


def test_a_failure_is_not_kept() -> None:
    """Whoever asks next has it made again."""
    clock = ManualClock()
    answers = iter([ValueError("first"), 7])

    def make() -> int:
        answer = next(answers)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    recent = Recent(make, clock, max_age=1.0)
    with pytest.raises(ValueError, match="first"):
        recent.get()
    assert recent.get() == 7
