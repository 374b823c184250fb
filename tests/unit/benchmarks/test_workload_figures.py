"""Medians, intervals, hit rates and verdicts, from given samples."""

from math import comb

import pytest

from support.workloads.figures import (
    Sample,
    hit_rates,
    latency_figures,
    median_interval,
    percentile,
    reason,
    speedup,
    verdict,
)
from support.workloads.requests import Asked


def sample(first: float, *, matched: int = 0, copied: int = 0, prompt: int = 100) -> Sample:
    """Returns a request that took ``first`` seconds to its first token."""
    return Sample(first, first * 2, [1], prompt, matched, copied, prompt - matched - copied, 0.001)


def asked(known: int, length: int = 100) -> Asked:
    """Returns a request with ``known`` tokens that were computed before."""
    return Asked(list(range(length)), None, known)


def test_percentiles_lie_between_samples() -> None:
    """Percentiles are interpolated linearly, as in numpy."""
    assert percentile([4.0, 1.0, 2.0, 3.0], 50) == 2.5
    assert percentile([1.0, 3.0], 99) == pytest.approx(2.98)


@pytest.mark.parametrize(("count", "rank"), [(6, 0), (9, 1), (20, 5), (60, 21)])
def test_a_medians_interval_is_two_order_statistics(count: int, rank: int) -> None:
    """The interval's ranks are those of a sign test's tables, and no fewer would do."""
    samples = [float(each) for each in range(count)]
    assert median_interval(samples[::-1]) == (rank, count - 1 - rank)

    def covered(low: int) -> float:
        return 1 - 2 * sum(comb(count, each) for each in range(low + 1)) / 2**count

    assert covered(rank) >= 0.95 > covered(rank + 1)


def test_too_few_samples_have_all_of_them_as_interval() -> None:
    """No pair of one, two or five samples has 95 %, so the interval has all."""
    assert median_interval([3.0]) == (3.0, 3.0)
    assert median_interval([3.0, 1.0]) == (1.0, 3.0)
    assert median_interval([3.0, 1.0, 2.0, 5.0, 4.0]) == (1.0, 5.0)


def test_hits_are_counted_among_those_that_could() -> None:
    """Only requests that could hit are counted, up to the last known token but one."""
    requests = [asked(0), asked(50), asked(50), asked(50), asked(50), asked(100)]
    samples = [
        sample(1, matched=16),
        sample(1, matched=48, copied=9),
        sample(1, matched=48),
        sample(1, copied=15),
        sample(1),
        sample(1, matched=96, copied=3),
    ]
    assert hit_rates(requests, samples) == {
        "requests": 6,
        "could_hit": 5,
        "full_hits": 2,
        "partial_hits": 1,
        "hit_rate": 0.6,
        "full_hit_rate": 0.4,
        "token_hit_rate": round((50 + 48 + 15 + 99) / 299, 4),
        "hit_rate_of_all": 0.5,
    }
    assert hit_rates([asked(0)], [sample(1)])["hit_rate"] == 0.0


def test_a_speedup_is_the_median_of_requests_own_ratios() -> None:
    """The speedup is over requests that could hit, beside those of all and of the total time."""
    without = [sample(1.0), sample(1.0), sample(1.0), sample(4.0)]
    store = [sample(1.0), sample(0.1), sample(0.2), sample(1.0)]
    found = speedup(without, store, [False, True, True, True])
    assert found.could_hit == 5.0
    assert found.interval == (4.0, 10.0)
    assert found.all_median == 4.5
    assert found.all_mean == pytest.approx(7.0 / 2.3)


def test_a_variants_figures_are_of_all_its_requests_and_of_those_that_could_hit() -> None:
    """Times are milliseconds, and the rate counts whole requests a second."""
    samples = [sample(1.0, matched=32, copied=3), sample(3.0)]
    found = latency_figures(samples, [True, False])
    assert found["ttft_p50_ms"] == 2_000.0
    assert found["could_hit_ttft_p50_ms"] == 1_000.0
    assert found["requests_per_s"] == 0.25
    assert (found["prefilled_tokens"], found["matched_tokens"]) == (165, 32)
    assert found["copied_tokens"] == 3
    assert latency_figures(samples, [False, False])["could_hit_ttft_p50_ms"] is None


@pytest.mark.parametrize(
    ("measured", "ideal", "met"),
    [(10.0, 12.0, True), (9.9, 12.0, False), (4.3, 5.0, True), (4.2, 5.0, False)],
)
def test_a_target_beyond_the_ideal_is_a_share_of_it(
    measured: float, ideal: float, *, met: bool
) -> None:
    """The target is 10x if the ideal reaches it, and otherwise 85 % of the ideal."""
    found = verdict(measured, ideal, 10.0)
    assert found["met"] is met
    assert f"{ideal:.2f}x" in found["why"]


def test_a_reason_has_the_figures_and_their_targets() -> None:
    """The reason says which targets apply to the speedup and to the hit rate."""
    head, target = {"speedup": 4.5, "ideal_speedup": 5.0, "hit_rate": 0.97}, {"hit_rate": 0.98}
    assert reason(head, target | {"speedup": 10}) == (
        "speedup 90% of the ideal, target 85%, as the ideal 5.00x is below 10x;"
        " hit rate 97%, target 98%"
    )
    assert reason(head, target | {"speedup": 5}) == (
        "speedup 4.50x, target 5x, ideal 5.00x; hit rate 97%, target 98%"
    )
