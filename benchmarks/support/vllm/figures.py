"""The figures of ways, from their requests. Requests beside other work are left out."""

from collections.abc import Mapping, Sequence
from statistics import median, quantiles
from typing import Any

from support.vllm.first_token import Request, Samples
from support.vllm.ways import ALONE

# The fewest requests of a kind that make a median and a 95th percentile.
ENOUGH = 8
PERCENTILES = 100


def rows(samples: Mapping[str, Samples]) -> list[dict[str, Any]]:
    """Returns a row of figures for each way. Times are ms; a figure without requests is None."""
    return [_row(way, found) for way, found in samples.items()]


def p95(values: Sequence[float]) -> float | None:
    """Returns the 95th percentile, interpolated between values; None for none."""
    if len(values) < 2:  # quantiles() takes no fewer
        return values[0] if values else None
    return quantiles(values, n=PERCENTILES, method="inclusive")[94]


def _row(way: str, samples: Samples) -> dict[str, Any]:
    pairs = [
        (cold, beside)
        for cold, beside in zip(samples.cold, samples.beside, strict=True)
        if cold.clean and beside.clean
    ]
    cold, beside = [each for each, _ in pairs], [each for _, each in pairs]
    hit = _clean(samples.hit)
    ratios = [each.seconds / plain.seconds for each, plain in pairs]
    plain = _median_ms(beside)
    cold_ms, hit_ms = _median_ms(cold), _median_ms(hit)
    return {
        "way": way,
        "cold_ms": cold_ms,
        "cold_p95_ms": _rounded(p95([each.seconds * 1e3 for each in cold]), 1),
        "alone_ms": plain,
        "alone_p95_ms": _rounded(p95([each.seconds * 1e3 for each in beside]), 1),
        "hit_ms": hit_ms,
        "ratio": _ratio(cold_ms, hit_ms, 2),
        "cold_to_alone": _rounded(_median(ratios), 3),
        "hit_of_alone": _ratio(plain, hit_ms, 2),
        "identical": samples.identical,
        "tokens_hit": _whole_median(samples.tokens),
        "stored_bytes": _whole_median(samples.stored_bytes),
        "loaded_bytes": _whole_median(samples.loaded_bytes),
        "engine_core_s": _rounded(_median([e.use.engine_core_seconds for e in cold]), 2),
        "engine_core_faults": _whole_median([e.use.engine_core_faults for e in cold]),
        "worker_faults": _whole_median([e.use.worker_faults for e in cold]),
        "other_cores": _rounded(_median([e.other_cores for e in samples.cold + samples.hit]), 2),
        "kept": {"cold": len(cold), "hit": len(hit)},
        "dropped": {
            "cold": len(samples.cold) - len(cold),
            "hit": len(samples.hit) - len(hit),
        },
        "enough": len(cold) >= ENOUGH and (way == ALONE or len(hit) >= ENOUGH),
        "raw_cold": [_raw(each) for each in samples.cold],
        "raw_beside": [_raw(each) for each in samples.beside],
        "raw_hit": [_raw(each) for each in samples.hit],
        "raw_tokens": samples.tokens,
    }


def _raw(request: Request) -> dict[str, float]:
    return {
        "ms": round(request.seconds * 1e3, 2),
        "engine_core_s": round(request.use.engine_core_seconds, 2),
        "engine_core_faults": request.use.engine_core_faults,
        "worker_faults": request.use.worker_faults,
        "other_cores": round(request.other_cores, 3),
    }


def _clean(requests: Sequence[Request]) -> list[Request]:
    return [each for each in requests if each.clean]


def _median_ms(requests: Sequence[Request]) -> float | None:
    return _rounded(_median([each.seconds * 1e3 for each in requests if each.clean]), 1)


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _whole_median(values: Sequence[int]) -> int | None:
    return round(median(values)) if values else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _ratio(above: float | None, below: float | None, digits: int) -> float | None:
    return None if above is None or not below else round(above / below, digits)
