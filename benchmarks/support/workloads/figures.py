"""Figures from samples: quantiles, ratios, hit rates, and whether a target is met."""

from collections.abc import Mapping, Sequence
from math import comb
from statistics import fmean, median
from typing import Any, Final, NamedTuple

import numpy as np

from support.workloads.requests import Asked

# The share of the ideal that is the target if the ideal is below it.
SHARE_OF_IDEAL: Final = 0.85
# Tokens of a page. A shared beginning of fewer tokens is no hit.
LEAST_HIT: Final = 16


class Sample(NamedTuple):
    """One request as one variant served it. Times are in seconds, counts in tokens."""

    first_token_s: float
    whole_s: float
    output_ids: list[int]
    prompt: int
    matched: int
    copied: int
    prefilled: int
    store_s: float
    store_failure: str | None = None

    @property
    def reused(self) -> int:
        """Tokens of the prompt that were not computed."""
        return self.matched + self.copied


def percentile(samples: Sequence[float], percent: float) -> float:
    """Returns a percentile, interpolated between the two samples nearest to it."""
    return float(np.percentile(samples, percent))


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Returns bounds of the median for any distribution: two order statistics.

    They are the narrowest symmetric pair whose binomial probability is at least ``confidence``.
    With too few samples for that, they are the smallest and the largest.
    """
    ordered, count = sorted(samples), len(samples)
    outside = 0.0
    rank = 0
    # P(fewer than rank + 1 samples are below the median), for both sides together.
    while rank < (count - 1) // 2:
        outside += 2 * comb(count, rank) / 2**count
        if outside > 1 - confidence:
            break
        rank += 1
    rank = max(rank - 1, 0)
    return ordered[rank], ordered[count - 1 - rank]


def hit_rates(asked: Sequence[Asked], samples: Sequence[Sample]) -> dict[str, Any]:
    """Counts hits among the requests that could hit: full, to the last known token, or partial.

    A partial hit has at least a page. ``token_hit_rate`` is the reused share of the known tokens.
    """
    pairs = [
        (min(sample.reused, _knowable(each)), _knowable(each))
        for each, sample in zip(asked, samples, strict=True)
        if each.could_hit
    ]
    full = sum(reused == known for reused, known in pairs)
    partial = sum(LEAST_HIT <= reused < known for reused, known in pairs)
    could = len(pairs)
    return {
        "requests": len(asked),
        "could_hit": could,
        "full_hits": full,
        "partial_hits": partial,
        "hit_rate": _share(full + partial, could),
        "full_hit_rate": _share(full, could),
        "token_hit_rate": _share(
            sum(reused for reused, _ in pairs), sum(known for _, known in pairs)
        ),
        "hit_rate_of_all": _share(full + partial, len(asked)),
    }


def _knowable(asked: Asked) -> int:
    """Returns how much of a prompt may be reused. Its last token runs for its logits."""
    return min(asked.known_tokens, len(asked.ids) - 1)


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


def latency_figures(samples: Sequence[Sample], could_hit: Sequence[bool]) -> dict[str, Any]:
    """Returns the times of a variant's requests: all of them, and those that could hit."""
    first = [each.first_token_s for each in samples]
    hits = [each for each, could in zip(first, could_hit, strict=True) if could]
    return {
        "ttft_p50_ms": _ms(percentile(first, 50)),
        "ttft_p99_ms": _ms(percentile(first, 99)),
        "ttft_mean_ms": _ms(fmean(first)),
        "could_hit_ttft_p50_ms": _ms(percentile(hits, 50)) if hits else None,
        "could_hit_ttft_p99_ms": _ms(percentile(hits, 99)) if hits else None,
        "requests_per_s": round(len(samples) / sum(each.whole_s for each in samples), 3),
        "prompt_tokens": sum(each.prompt for each in samples),
        "prefilled_tokens": sum(each.prefilled for each in samples),
        "matched_tokens": sum(each.matched for each in samples),
        "copied_tokens": sum(each.copied for each in samples),
        "store_p50_ms": _ms(median(each.store_s for each in samples)),
        "store_failures": sum(each.store_failure is not None for each in samples),
    }


class Speedup(NamedTuple):
    """The speedups over a run without the store."""

    could_hit: float
    interval: tuple[float, float]
    all_median: float
    all_mean: float


def speedup(
    without: Sequence[Sample], other: Sequence[Sample], could_hit: Sequence[bool]
) -> Speedup:
    """Compares times to first token, request by request.

    ``could_hit`` is the median of the requests' own ratios, over those that could hit, with its
    ``interval``. ``all_median`` is the same over all. ``all_mean`` is the total time without the
    store over the total time with it.
    """
    ratios = [a.first_token_s / b.first_token_s for a, b in zip(without, other, strict=True)]
    hits = [each for each, could in zip(ratios, could_hit, strict=True) if could]
    return Speedup(
        median(hits),
        median_interval(hits),
        median(ratios),
        sum(each.first_token_s for each in without) / sum(each.first_token_s for each in other),
    )


def verdict(measured: float, ideal: float, target: float) -> dict[str, Any]:
    """Returns the rule that applies to a speedup, and whether it is met."""
    if ideal >= target:
        return {
            "met": measured >= target,
            "why": f"speedup {measured:.2f}x, target {target:g}x, ideal {ideal:.2f}x",
        }
    share = measured / ideal
    return {
        "met": share >= SHARE_OF_IDEAL,
        "why": (
            f"speedup {share:.0%} of the ideal, target {SHARE_OF_IDEAL:.0%},"
            f" as the ideal {ideal:.2f}x is below {target:g}x"
        ),
    }


def reason(head: Mapping[str, Any], target: Mapping[str, float]) -> str:
    """Returns the rules for a headline's speedup and hit rate, beside its figures."""
    judged = verdict(head["speedup"], head["ideal_speedup"], target["speedup"])
    return f"{judged['why']}; hit rate {head['hit_rate']:.0%}, target {target['hit_rate']:.0%}"


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
