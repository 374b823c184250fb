"""Figures from the times of slices: medians over rounds, ratios within a round."""

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from support.fetch.workload import Times


class Cell(NamedTuple):
    """A measured case: a part of the benchmark, its owner, and the number of tokens."""

    part: str
    name: str
    tokens: int

    def also(self, suffix: str) -> "Cell":
        """Returns a cell of the same part and tokens, named with a suffix."""
        return self._replace(name=self.name + suffix)


Rounds = dict[Cell, list[Times]]


def cell_figures(rounds: Rounds, references: dict[str, str], moved: int) -> list[dict[str, Any]]:
    """Returns each cell's figures. Times are milliseconds, and raw samples are microseconds.

    ``fastest_ms`` is the shortest time, which other work lengthens least. ``ratio`` is to the
    part's reference in ``references``: the median of the rounds' own. ``gb_s`` is of ``moved``
    bytes, if a part moves any. A byte that is read and written counts once.
    """
    return [_figures(cell, rounds, references, moved) for cell in rounds]


def _figures(cell: Cell, rounds: Rounds, references: dict[str, str], moved: int) -> dict[str, Any]:
    times = rounds[cell]
    figures: dict[str, Any] = cell._asdict()
    for name in times[0]:
        middle = median(median(each[name]) for each in times)
        figures[f"{name}_ms"] = round(middle / 1e6, 3)
    figures["fastest_ms"] = round(min(min(each["whole"]) for each in times) / 1e6, 3)
    reference = Cell(cell.part, references[cell.part], cell.tokens)
    figures["ratio"] = _ratio(times, rounds[reference])
    if cell.part != "hit":
        figures["gb_s"] = round(moved / median(median(each["whole"]) for each in times), 2)
    figures["samples"] = sum(len(each["whole"]) for each in times)
    figures["raw_us"] = [[round(ns / 1e3) for ns in each["whole"]] for each in times]
    return figures


def _ratio(upper: Sequence[Times], lower: Sequence[Times]) -> float:
    pairs = zip(upper, lower, strict=True)
    return round(median(median(a["whole"]) / median(b["whole"]) for a, b in pairs), 3)
