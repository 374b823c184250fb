"""A store's counters over time."""

from itertools import pairwise

from kvstore.v1 import store_pb2
from kvstore_ctl.page.counter_history import (
    COARSE_COUNT,
    FINE_COUNT,
    Sample,
    SampleHistory,
    sample_of,
)


def sample(time: float) -> Sample:
    """Returns a sample without counts."""
    return Sample(time, 0, 0, 0, 0, 0, 0, 0)


def test_a_sample_has_what_was_found_in_place_and_to_copy() -> None:
    """Matched and copied tokens both count as found, because neither was computed."""
    stats = store_pb2.GetStatsResponse(
        counters={"asked_token_count": 10, "matched_token_count": 4, "copied_token_count": 3}
    )
    stats.uptime.FromNanoseconds(1_234_560_000)
    taken = sample_of(stats)
    assert (taken.time, taken.asked, taken.found) == (1.235, 10, 7)


def test_seconds_are_kept_for_minutes_and_minutes_for_a_day() -> None:
    """Samples by second and by minute are both bounded in number, however long the page runs."""
    history = SampleHistory()
    for time in range(100_000):
        history.add(sample(time))
    shown = history.since(-1)
    assert shown["columns"] == Sample._fields
    fine, coarse = ([each.time for each in shown[name]] for name in ("fine", "coarse"))
    assert (len(fine), fine[0], fine[-1]) == (FINE_COUNT, 100_000 - FINE_COUNT, 99_999)
    assert len(coarse) == COARSE_COUNT
    assert {later - each for each, later in pairwise(coarse)} == {60}


def test_what_is_known_is_not_told_again() -> None:
    """A query returns only samples after a time."""
    history = SampleHistory()
    for time in range(5):
        history.add(sample(time))
    shown = history.since(2)
    assert [each.time for each in shown["fine"]] == [3, 4]
    assert shown["coarse"] == []
