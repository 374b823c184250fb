"""Figures of tails.py: quantiles of all calls of a way, and ratios of two ways."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from support.tails.open_loop import Latencies

QUANTILES = {"p50": 0.5, "p99": 0.99, "p99_9": 0.999}


def quantile(times: Sequence[float], fraction: float) -> float:
    """Returns the microseconds that this fraction of some seconds does not exceed."""
    return sorted(times)[math.ceil(fraction * len(times)) - 1] * 1e6


def figures_of(latencies: Latencies) -> dict[str, Any]:
    """Returns the figures of each call, in microseconds, from its time in the schedule.

    ``sent`` has those from its sending, without a wait for the caller's call before.
    """
    return {
        name: {
            "samples": len(times),
            **_quantiles(times),
            "max_us": round(max(times) * 1e6, 1),
            "sent": _quantiles(latencies.sent[name]),
        }
        for name, times in latencies.scheduled.items()
    }


def ratios(upper: Mapping[str, Any], lower: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Returns one way's quantiles over another's, by call."""
    return {
        name: {
            key: round(upper[name][f"{key}_us"] / lower[name][f"{key}_us"], 2) for key in QUANTILES
        }
        for name in upper
    }


def _quantiles(times: Sequence[float]) -> dict[str, float]:
    return {f"{key}_us": round(quantile(times, part), 1) for key, part in QUANTILES.items()}
