"""Figures of slices: quantiles, medians over rounds, ratios within a round."""

import pytest

from support.rpc.figures import Cell, cell_figures, quantile, ratios
from support.rpc.slices import Slice

THREADS, AIO = Cell("grpc.server", 2048, 2), Cell("grpc.aio", 2048, 2)


@pytest.mark.parametrize(
    ("fraction", "expected"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.001, 1.0)]
)
def test_a_quantile_is_a_time_that_was_measured(fraction: float, expected: float) -> None:
    """The p99 of a hundred calls is the 99th time, in microseconds, in any order."""
    times = [each * 1000 for each in range(100, 0, -1)]
    assert quantile(times, fraction) == expected


def test_a_figure_is_the_median_of_the_rounds() -> None:
    """One round under foreign load does not change a figure."""
    rounds = [
        Slice({"match": [1000]}, 10.0, 5.0),
        Slice({"match": [3000, 3000]}, 30.0, 7.0),
        Slice({"match": [90_000]}, 1.0, 90.0),
    ]
    figures = cell_figures(THREADS, rounds)
    assert (figures["calls_per_second"], figures["server_cpu_us_per_call"]) == (10.0, 7.0)
    match = figures["operations"]["match"]
    assert (match["samples"], match["p50_us"]) == (4, 3.0)
    # Two callers, 3 us a call.
    assert match["calls_per_second"] == 666_667


def test_a_slice_without_a_server_has_no_load() -> None:
    """A slice within this process has no server time and no concurrent calls."""
    figures = cell_figures(Cell("in process", 0, 1), [Slice({"empty": [1000]})])
    assert (figures["calls_per_second"], figures["server_cpu_us_per_call"]) == (None, None)


def test_a_ratio_is_taken_within_each_round() -> None:
    """Rounds on a busy machine, slow for both, give the same ratio."""
    rounds = {
        THREADS: [Slice({"match": [1000 * busy]}, 100 / busy, 4.0 * busy) for busy in (1, 5, 9)],
        AIO: [Slice({"match": [1500 * busy]}, 50 / busy, 8.0 * busy) for busy in (1, 5, 9)],
    }
    found = ratios(AIO, THREADS, rounds)
    assert found["operations"] == {"match": {"p50": 1.5, "p99": 1.5}}
    assert (found["calls_per_second"], found["server_cpu_per_call"]) == (0.5, 2.0)
