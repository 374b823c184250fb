"""The counts of a chaos run, and the errors that it found."""

import statistics
import sys
from collections import Counter
from threading import Lock
from typing import Any

# None of these may be anything else than zero.
WRONGS = (
    *("wrong_pages", "leaked_slots", "leaked_pins", "quarantine_left", "wrong_answers"),
    *("lost_caches", "returned_pages", "late_requests"),
)
# Nor these, which say that the run itself did not go as it should.
BROKEN = ("broken_sums", "corrupt_pages", "crashed_workers", "hung_workers", "server_failures")
COUNTED = (
    *("killed_workers", "stopped_workers", "killed_servers", "pages_checked", "hits"),
    *("evictions", "quarantined"),
)
# What happens in every run that is long enough.
HAPPENING = (
    *COUNTED,
    *("clock_jumps", "network_cuts", "stopped_servers", "full_pools", "answers"),
)
# What happens beside that if a holder keeps the store's memory.
WITH_HOLDER = ("killed_holders", "killed_with_holder", "replaced_servers")
# What happens beside that if hosts share an engine.
WITH_REMOTE = (
    *("engine_kills", "engine_stops", "engine_failovers", "lines_cut", "lines_dripped"),
    *("lines_silent", "lines_flipped", "remote_loads", "removals", "removals_seen_there"),
)
# Percentile of the store's answers' times.
P99 = 99


class Tally:
    """Counts and findings of all threads of the supervisor. Thread-safe."""

    def __init__(self, told_of: str) -> None:
        self.told: set[str] = set()
        self._told_of = told_of
        self._counts: Counter[str] = Counter()
        self._points: Counter[str] = Counter()
        self._seconds: list[float] = []
        self._mutex = Lock()

    def __getitem__(self, name: str) -> int:
        with self._mutex:
            return self._counts[name]

    def add(self, name: str, count: int = 1) -> None:
        """Count something."""
        with self._mutex:
            self._counts[name] += count

    def struck(self, kind: str) -> None:
        """Counts a fault that happened, by its point and action."""
        with self._mutex:
            self._points[kind] += 1

    def wrong(self, figure: str, what: str, count: int = 1) -> None:
        """Count something that may not be, and say at once what, and in which run."""
        if count:
            self.add(figure, count)
            sys.stderr.write(f"{figure}: {what} ({self._told_of})\n")

    def take(self, message: dict[str, Any]) -> None:
        """Takes a worker's message."""
        if "wrong" in message:
            self.wrong("wrong_pages", message["wrong"])
        if "figure" in message:
            self.wrong(message["figure"], message["found"])
        if "told" in message:
            self.told.add(message["told"])
        if "struck" in message:
            self.struck(message["struck"])
            self.add("network_cuts")
        with self._mutex:
            self._counts.update(message.get("counts", {}))
            self._seconds += message.get("seconds", ())

    @property
    def clean(self) -> bool:
        """True if nothing was found wrong."""
        return not any(self[each] for each in (*WRONGS, *BROKEN))

    def without(self, *names: str) -> list[str]:
        """Returns what has not happened yet of all that can happen, besides ``names``."""
        every = (*HAPPENING, *WITH_HOLDER, *WITH_REMOTE)
        return [each for each in every if each not in names and not self[each]]

    def figures(self) -> dict[str, Any]:
        """Returns all as JSON has it: what was asked for first."""
        with self._mutex:
            first = {name: self._counts[name] for name in (*COUNTED, *WRONGS, *BROKEN)}
            others = {name: n for name, n in sorted(self._counts.items()) if name not in first}
            found = {**first, **others, "faults": dict(sorted(self._points.items()))}
            if len(self._seconds) > 1:
                cuts = statistics.quantiles(self._seconds, n=100)
                found["p50_ms"] = round(cuts[49] * 1e3, 2)
                found["p99_ms"] = round(cuts[P99 - 1] * 1e3, 2)
            return found
