"""What was counted, moment by moment."""

from itertools import pairwise

import pytest

from kvstore.core.values.counters import Counters
from kvstore.page.history import COARSE_COUNT, FINE_COUNT, History, Sample, sample_of
from kvstore.service.admin import Totals


def sample(time: float, uses: int = 0) -> Sample:
    """Returns a sample in which nothing but uses was counted."""
    return Sample(time, 0, 0, 0, 0, 0, 0, 0, uses)


def test_a_sample_has_what_was_found_in_place_and_to_copy() -> None:
    """Both are tokens that nobody computed."""
    counters = Counters(asked_token_count=10, matched_token_count=4, copied_token_count=3)
    taken = sample_of(Totals(counters, 8), 1.23456)
    assert (taken.time, taken.asked, taken.found, taken.uses) == (1.235, 10, 7, 8)


def test_seconds_are_kept_for_minutes_and_minutes_for_a_day() -> None:
    """However long it goes on, there are no more than so many of each."""
    history = History()
    for time in range(100_000):
        history.take(sample(time))
    shown = history.since(-1)
    assert shown["columns"] == Sample._fields
    fine, coarse = ([each.time for each in shown[name]] for name in ("fine", "coarse"))
    assert (len(fine), fine[0], fine[-1]) == (FINE_COUNT, 100_000 - FINE_COUNT, 99_999)
    assert len(coarse) == COARSE_COUNT
    assert {later - each for each, later in pairwise(coarse)} == {60}


def test_what_is_known_is_not_told_again() -> None:
    """Samples after a time, and not of it."""
    history = History()
    for time in range(5):
        history.take(sample(time))
    shown = history.since(2)
    assert [each.time for each in shown["fine"]] == [3, 4]
    assert shown["coarse"] == []


@pytest.mark.parametrize(
    ("use", "age"), [(0, None), (1, 30.0), (4, 20.0), (10, 20.0), (11, 10.0), (12, 0.0)]
)
def test_a_use_has_an_age(use: int, age: float | None) -> None:
    """It was before the first sample that counts it; after all of them it is now."""
    history = History()
    for time, uses in ((0, 3), (10, 10), (20, 11)):
        history.take(sample(time, uses))
    assert history.age(use, 30.0) == age


def test_an_age_is_found_among_minutes_too() -> None:
    """What the seconds do not reach back to, the minutes do."""
    history = History()
    for time in range(2000):
        history.take(sample(time, uses=time + 1))
    assert history.age(101, 2000.0) == 2000.0 - 120
    assert history.age(1901, 2000.0) == 2000.0 - 1900


def test_without_samples_no_age_is_known() -> None:
    """Nobody looked yet."""
    assert History().age(5, 1.0) is None
