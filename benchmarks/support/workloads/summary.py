"""The figures of a workload's rows."""

from statistics import median
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from support.workloads.figures import (
    hit_rates,
    latency_figures,
    median_interval,
    percentile,
    reason,
    speedup,
    verdict,
)
from support.workloads.run import Rows
from support.workloads.world import IDEAL, STORE, TWO, WITHOUT

# The overhead that a store may add to the time to first token on a miss.
MISS_BOUND: Final = 0.02


class Target(NamedTuple):
    """The project's goals for a workload: a speedup, and a share of hits."""

    speedup: float
    hit_rate: float


TARGETS: Final = MappingProxyType(
    {
        "chat": Target(10, 0.98),
        "rag": Target(10, 0.90),
        "batch": Target(5, 1.0),
        "mixed": Target(5, 0.80),
    }
)


def workload_summary(name: str, rows: Rows) -> dict[str, Any]:
    """Returns a workload's figures: its headline first, then each variant's, then raw samples.

    The headline is of one worker. ``speedup`` and ``ideal_speedup`` are of the time to first token
    over the requests that could hit, or of a batch's requests per second.
    """
    target = TARGETS[name]
    others = [each for each in rows.samples if each != WITHOUT]
    ratios = {each: _ratios(rows, each) for each in others}
    hits = {each: hit_rates(rows.asked, rows.samples[each]) for each in others if each != IDEAL}
    ideal = ratios[IDEAL]["speedup"]
    judged = verdict(ratios[STORE]["speedup"], ideal, target.speedup)
    enough = hits[STORE]["hit_rate"] >= target.hit_rate
    headline = {
        **ratios[STORE],
        "ideal_speedup": ideal,
        "share_of_ideal": round(ratios[STORE]["speedup"] / ideal, 4),
        "paired_share_of_ideal": _paired_share_of_ideal(rows),
        **hits[STORE],
        "identical": rows.identity["identical"],
        "near_ties": rows.identity["near_ties"],
        "met": judged["met"] and enough,
    }
    headline["why"] = reason(headline, target._asdict())
    if TWO in ratios:
        again = verdict(ratios[TWO]["speedup"], ideal, target.speedup)
        headline["two_workers"] = {**ratios[TWO], **hits[TWO], **again}
    return {
        "headline": headline,
        "target": target._asdict(),
        "ideal": ratios[IDEAL],
        "identity": rows.identity,
        "variants": {each: _variant(rows, each) for each in rows.samples},
        "raw": _raw(rows),
    }


def miss_summary(misses: dict[int, Rows]) -> dict[str, Any]:
    """Returns the store's overhead on unshared prompts, by their length in tokens.

    ``added`` is the median of the pairs' own differences, as a share of the time without.
    ``interval`` has its bounds.
    """
    lengths = []
    for length, rows in misses.items():
        pairs = list(zip(rows.samples[WITHOUT], rows.samples[STORE], strict=True))
        added = [(b.first_token_s - a.first_token_s) / a.first_token_s for a, b in pairs]
        low, high = median_interval(added)
        lengths.append(
            {
                "tokens": length,
                "pairs": len(pairs),
                "added": round(median(added), 5),
                "interval": [round(low, 5), round(high, 5)],
                "added_ms": _ms(median(b.first_token_s - a.first_token_s for a, b in pairs)),
                "without_p50_ms": _ms(median(a.first_token_s for a, _ in pairs)),
                "waited_for_store_p50_ms": _ms(median(b.store_s for _, b in pairs)),
                "reused_tokens": sum(b.reused for _, b in pairs),
                "identical": rows.identity["identical"],
                "met": median(added) <= MISS_BOUND,
                "raw": _raw(rows),
            }
        )
    worst = max(lengths, key=lambda each: each["added"])
    return {
        "bound": MISS_BOUND,
        "added": worst["added"],
        "interval": worst["interval"],
        "met": all(each["met"] for each in lengths),
        "lengths": lengths,
    }


def _ratios(rows: Rows, name: str) -> dict[str, Any]:
    """Returns the ratios of a variant to the one without the store."""
    if name in rows.seconds:
        pairs = zip(rows.seconds[WITHOUT], rows.seconds[name], strict=True)
        ratios = [a / b for a, b in pairs]
        return {
            "speedup": round(median(ratios), 3),
            "speedup_of_runs": [round(r, 3) for r in ratios],
        }
    could_hit = [each.could_hit for each in rows.asked]
    found = speedup(rows.samples[WITHOUT], rows.samples[name], could_hit)
    return {
        "speedup": round(found.could_hit, 3),
        "speedup_interval": [round(each, 3) for each in found.interval],
        "speedup_all_median": round(found.all_median, 3),
        "speedup_all_mean": round(found.all_mean, 3),
    }


def _paired_share_of_ideal(rows: Rows) -> float:
    """Returns the median share of the ideal, by request or by run."""
    if rows.seconds:
        pairs = zip(rows.seconds[IDEAL], rows.seconds[STORE], strict=True)
        return round(median(a / b for a, b in pairs), 4)
    triples = zip(rows.asked, rows.samples[IDEAL], rows.samples[STORE], strict=True)
    return round(
        median(a.first_token_s / b.first_token_s for each, a, b in triples if each.could_hit), 4
    )


def _variant(rows: Rows, name: str) -> dict[str, Any]:
    figures = latency_figures(rows.samples[name], [each.could_hit for each in rows.asked])
    if name in rows.seconds:
        seconds = rows.seconds[name]
        figures["seconds"] = [round(each, 4) for each in seconds]
        requests = len(rows.asked) / len(seconds)
        figures["requests_per_s"] = round(requests / percentile(seconds, 50), 3)
    return figures


def _raw(rows: Rows) -> dict[str, Any]:
    """Returns every sample in the order of the requests, in milliseconds and tokens."""
    return {
        "prompt_tokens": [len(each.ids) for each in rows.asked],
        "known_tokens": [each.known_tokens for each in rows.asked],
        "ttft_ms": {
            name: [_ms(each.first_token_s) for each in samples]
            for name, samples in rows.samples.items()
        },
        "reused_tokens": {
            name: [each.reused for each in samples] for name, samples in rows.samples.items()
        },
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
