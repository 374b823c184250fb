"""Collections in small portions: Python's own collector, whose settings each test gives back."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from kvstore.service.periodic_threads import AT_LATEST, ROUNDS, Collector


class Thing:
    """Something that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


class HandClock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Returns the time that it was set to."""
        return self.now


@pytest.fixture
def clock() -> Iterator[HandClock]:
    """Provides a clock, and a collector's settings that end with the test."""
    thresholds = gc.get_threshold()
    yield HandClock()
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_no_full_collection_comes_by_itself(clock: HandClock) -> None:
    """From the beginning on, however much is made and kept; what is there is left alone."""
    Collector(clock).begin()
    full = gc.get_stats()[2]["collections"]
    kept = [[] for _ in range(200_000)]
    assert gc.get_stats()[2]["collections"] == full
    assert gc.get_freeze_count() > 0
    assert len(kept) == 200_000


def test_cycles_are_collected_in_time(clock: HandClock) -> None:
    """Garbage made since the last collection goes with the next, after a minute at most."""
    collector = Collector(clock)
    collector.begin()
    gc.disable()
    try:
        gone = weakref.ref(Thing())
        collector.step()
        assert gone() is not None
        clock.now += AT_LATEST
        collector.step()
        assert gone() is None
    finally:
        gc.enable()


def test_much_that_is_new_makes_one_due(clock: HandClock) -> None:
    """Before the minute is over, if as much came as one portion is to have."""
    collector = Collector(clock)
    collector.begin()
    frozen = gc.get_freeze_count()
    kept: list[list[int]] = []
    while gc.get_count()[2] < ROUNDS:
        kept.append([])
    collector.step()
    assert gc.get_freeze_count() > frozen + len(kept) // 2
    assert gc.get_count()[2] == 0
