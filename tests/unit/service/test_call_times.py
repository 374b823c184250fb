"""Durations of calls: counted by bucket, by each thread for itself, and added up."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier

import pytest

from kvstore.service.call_durations import BOUNDS, CallTimes, DurationCounts, Durations, bucket_of


def test_a_duration_is_in_the_first_bucket_whose_bound_it_is_below() -> None:
    """Each bound is twice the one before; what is longer than all is in the last bucket."""
    for number, bound in enumerate(BOUNDS):
        assert bucket_of(bound - 2e-6) == number
        assert bucket_of(bound + 2e-6) == number + 1
    assert bucket_of(0.0) == bucket_of(1e-9) == 0
    assert bucket_of(3600.0) == len(BOUNDS)
    assert [b / a for a, b in pairwise(BOUNDS)] == [2.0] * (len(BOUNDS) - 1)


def test_durations_are_counted() -> None:
    """By bucket, one upon the other, and in all."""
    durations = Durations()
    for seconds in (0.0, 0.001, 0.0011, 60.0):
        durations.note(seconds)
    found = durations.read()
    assert (found.total, found.counts[0], found.counts[-1]) == (4, 1, 1)
    assert found.cumulative()[0] == 1
    assert found.cumulative()[-2:] == [3, 4]
    assert found.seconds == pytest.approx(60.0021)


def test_counts_add_up() -> None:
    """Bucket by bucket."""
    one, none = Durations(), DurationCounts()
    one.note(1.0)
    assert one.read().plus(none) == none.plus(one.read()) == one.read()
    assert one.read().plus(one.read()).total == 2


def test_calls_of_all_threads_are_counted() -> None:
    """Each thread has a book of its own, which stays when it ends."""
    times, together = CallTimes(), Barrier(4)

    def call(number: int) -> None:
        together.wait(30)
        for _ in range(1000):
            times.note("/a/Match", "OK", 0.001)
        times.note("/a/Match", f"REASON_{number}", 0.5)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call, range(4)))
    found = times.read()
    assert found["/a/Match", "OK"].total == 4000
    assert sorted(outcome for _, outcome in found) == ["OK", *(f"REASON_{n}" for n in range(4))]
    assert times.read() == found
