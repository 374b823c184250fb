"""Figures of benchmarks/tails.py, and the callers' schedule."""

import time
from collections.abc import Iterator
from itertools import islice

import pytest

from support.tails.figures import figures_of, quantile, ratios
from support.tails.fleet import joined
from support.tails.namespaces import fresh_prompts
from support.tails.open_loop import NEW_PAGES, TOKENS, Latencies, OpenLoop


class SlowStore:
    """Answers as a worker does, and takes a while for the first match."""

    def __init__(self, seconds: float) -> None:
        self._waits: Iterator[float] = iter([seconds])
        self.made: list[str] = []

    def match(self, tokens: bytes) -> tuple[tuple[int, int], int]:
        """Matches all but the last token."""
        self.made.append("match")
        time.sleep(next(self._waits, 0.0))
        return (1, 2), len(tokens) // 4 - 1

    def acquire(self, tokens: bytes) -> tuple[int, int, int]:
        """Grants the new pages."""
        del tokens
        self.made.append("acquire")
        return 3, 4, NEW_PAGES

    def insert(self, reservation_id: int, tokens: bytes, position: int, pin_id: int) -> int:
        """Publishes them."""
        assert (reservation_id, position, pin_id) == (4, TOKENS // 2, 3)
        self.made.append("insert")
        return len(tokens) // 64

    def abort(self, reservation_id: int) -> None:
        """Ends the reservation."""
        self.made.append(f"abort {reservation_id}")

    def release(self, *pin_ids: int) -> None:
        """Releases pins."""
        self.made.append(f"release {pin_ids}")


def test_a_late_call_counts_for_those_behind_it() -> None:
    """Latencies are from the schedule, so callers behind a slow call waited too."""
    store = SlowStore(0.2)
    loop = OpenLoop(store, 1)  # type: ignore[arg-type]  # it has the methods that are called
    found = loop.run(time.monotonic(), 0.05, 0.01)
    assert store.made == ["match", "acquire", "insert", "abort 4", "release (3, 1, 2)"]
    assert found.scheduled["match"][0] > 0.2
    assert found.scheduled["acquire"][0] > 0.15
    assert found.sent["acquire"][0] < found.scheduled["acquire"][0] - 0.1


@pytest.mark.parametrize(("fraction", "expected"), [(0.5, 50.0), (0.99, 99.0), (0.999, 100.0)])
def test_a_quantile_is_one_of_the_times(fraction: float, expected: float) -> None:
    """The smallest that so many do not exceed, in microseconds."""
    times = [each * 1e-6 for each in range(100, 0, -1)]
    assert quantile(times, fraction) == pytest.approx(expected)


def test_figures_are_of_all_slices_together() -> None:
    """A way's calls are pooled, and its ratios are of the pooled quantiles."""
    one, two = ({"match": [each] * 2} for each in (1e-6, 3e-6))
    lower = joined([Latencies(one, one, 0, (0.5,)), Latencies(two, two, 1, (0.7,))])
    assert (lower.refused, lower.cores) == (1, (0.5, 0.7))
    upper = figures_of(Latencies(two, one, 0))
    found = figures_of(lower)
    assert (found["match"]["samples"], found["match"]["max_us"]) == (4, 3.0)
    assert ratios(upper, found)["match"] == {"p50": 3.0, "p99": 1.0, "p99_9": 1.0}


def test_no_two_prompts_begin_alike() -> None:
    """Within a source and among sources."""
    pages = [each[:64] for source in (0, 1) for each in islice(fresh_prompts(source, 2), 50)]
    assert len(set(pages)) == 100
