"""Durations of calls: counted by bucket, by each thread for itself, and added up."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from kvstore.service.call_times import CallTimes
from kvstore.service.durations import BOUNDS, DurationCounts, Durations


def test_a_duration_is_in_the_first_bucket_that_has_room_for_it() -> None:
    """A bound counts to its own bucket; what is longer than all is in the last."""
    durations = Durations()
    for seconds in (0.0, BOUNDS[0], BOUNDS[1], BOUNDS[-1] + 1):
        durations.note(seconds)
    found = durations.read()
    assert found.counts[:2] == (2, 1)
    assert found.counts[-1] == 1
    assert (found.total, found.cumulative()[-1]) == (4, 4)
    assert found.cumulative()[0] == 2
    assert found.seconds == sum((0.0, BOUNDS[0], BOUNDS[1], BOUNDS[-1] + 1))


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
