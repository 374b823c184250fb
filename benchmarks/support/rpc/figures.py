"""Figures from the times of slices: medians over rounds, and ratios within a round."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean, median
from typing import Any, NamedTuple

from support.rpc.slices import Slice

QUANTILES = {"p50": 0.50, "p99": 0.99}


class Cell(NamedTuple):
    """A measured case: a server, a prompt's tokens (0: none), and the number of callers."""

    server: str
    tokens: int
    callers: int


Rounds = dict[Cell, list[Slice]]


def quantile(times: Sequence[int], fraction: float) -> float:
    """Returns the time, in microseconds, that this fraction of the calls did not exceed."""
    return sorted(times)[math.ceil(fraction * len(times)) - 1] / 1e3


def cell_figures(cell: Cell, rounds: Sequence[Slice]) -> dict[str, Any]:
    """Returns a cell's figures, each the median of its rounds' figures."""
    operations: dict[str, Any] = {}
    for name in rounds[0].times:
        times = [each.times[name] for each in rounds]
        operations[name] = {
            "samples": sum(map(len, times)),
            **{
                f"{key}_us": round(median(quantile(each, fraction) for each in times), 1)
                for key, fraction in QUANTILES.items()
            },
            "calls_per_second": round(median(cell.callers * 1e9 / fmean(each) for each in times)),
        }
    return {
        **cell._asdict(),
        "calls_per_second": _median(rounds, lambda each: each.calls_per_second),
        "server_cpu_us_per_call": _median(rounds, lambda each: each.cpu_us_per_call),
        "operations": operations,
    }


def ratios(upper: Cell, lower: Cell, rounds: Rounds) -> dict[str, Any]:
    """Returns one cell's figures over another's: the median of the ratios of each round."""
    pairs = list(zip(rounds[upper], rounds[lower], strict=True))
    operations = {
        name: {
            key: _ratio(pairs, partial(_time, name=name, fraction=fraction))
            for key, fraction in QUANTILES.items()
        }
        for name in rounds[upper][0].times
    }
    return {
        "of": upper.server,
        "to": lower.server,
        "tokens": upper.tokens,
        "callers": upper.callers,
        "calls_per_second": _ratio(pairs, lambda each: each.calls_per_second or math.nan),
        "server_cpu_per_call": _ratio(pairs, lambda each: each.cpu_us_per_call or math.nan),
        "operations": operations,
    }


def _time(each: Slice, *, name: str, fraction: float) -> float:
    return quantile(each.times[name], fraction)


def _median(rounds: Sequence[Slice], figure: Callable[[Slice], float | None]) -> float | None:
    values = [value for each in rounds if (value := figure(each)) is not None]
    return round(median(values), 1) if values else None


def _ratio(pairs: Sequence[tuple[Slice, Slice]], figure: Callable[[Slice], float]) -> float:
    return round(median(figure(upper) / figure(lower) for upper, lower in pairs), 3)
