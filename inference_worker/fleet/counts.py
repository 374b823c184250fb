"""What all engines of a fleet count together, those that ended included."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Final

from inference_worker.engine.stats import EngineStats
from inference_worker.fleet.link import EngineLink

# What is so now and ends with a process; all other fields are totals, which only grow.
NOW: Final = frozenset(
    {"waiting", "running", "held_sequences", "private_slots_used", "engines", "engines_attached"}
)
NOTHING: Final = EngineStats(**dict.fromkeys((each.name for each in fields(EngineStats)), 0))


class FleetCounts:
    """Adds up counts; of a process that ended, what it told last stays in the totals."""

    def __init__(self) -> None:
        """Nothing is counted yet."""
        self._past = NOTHING
        self._last: dict[EngineLink, EngineStats] = {}

    def add(self, told: Mapping[EngineLink, EngineStats]) -> EngineStats:
        """Takes what the living told and returns the sums."""
        for ended in self._last.keys() - {each for each in self._last if each.open}:
            last = self._last.pop(ended)
            self._past = added([self._past, replace(last, **dict.fromkeys(NOW, 0))])
        self._last |= told
        return added([self._past, *self._last.values()])


def added(each: Iterable[EngineStats]) -> EngineStats:
    """Adds counts field by field."""
    all_of_them = list(each)
    return EngineStats(
        **{
            field.name: sum(getattr(one, field.name) for one in all_of_them)
            for field in fields(EngineStats)
        }
    )
