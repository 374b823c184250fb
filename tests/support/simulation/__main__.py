"""Deterministic simulation of a store and its clients: many schedules, each by a seed of its own.

The schedules of a run have the seeds S, S + 1, ... What is replaced of the machine,
and what is checked, says docs/simulation.md. The last line is one JSON object; exit
status 1 means that something was found, and the command that shows it is printed.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
from collections import Counter
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from simulation import seams

if TYPE_CHECKING:
    from simulation.schedule import Outcome

SCHEDULES, QUICK = 10_000, 200
# Schedules between two collections of all garbage, and of the young.
COLLECTION = 500


class Totals:
    """The sums of a run's results."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.schedules = 0
        self.violations = 0
        self.calls: Counter[tuple[str, str]] = Counter()
        self.counts: Counter[str] = Counter()
        self._digest = blake2b(digest_size=8)
        self._began = time.perf_counter()

    def add(self, outcome: "Outcome") -> None:
        """Adds a schedule's outcome."""
        self.schedules += 1
        self.violations += outcome.violation is not None
        self.calls += outcome.calls
        self.counts += outcome.counts
        self.counts["steps"] += outcome.steps
        self._digest.update(outcome.digest.encode())

    def summary(self) -> dict[str, object]:
        """Returns all of it as JSON."""
        verbs: Counter[str] = Counter()
        reasons: dict[str, Counter[str]] = {}
        for (verb, reason), count in sorted(self.calls.items()):
            verbs[verb] += count
            reasons.setdefault(reason, Counter())[verb] += count
        return {
            "seed": self.seed,
            "schedules": self.schedules,
            "violations": self.violations,
            "seconds": round(time.perf_counter() - self._began, 1),
            "digest": self._digest.hexdigest(),
            **dict(sorted(self.counts.items())),
            "verbs": verbs,
            "reasons": reasons,
        }


def main() -> int:
    """Runs schedules, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--schedules", type=int, help=f"how many (default {SCHEDULES})")
    parser.add_argument("--seed", type=int, help="of the first one (default: by the clock)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} schedules")
    parser.add_argument("--trace", action="store_true", help="print every step")
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    parser.add_argument("--first", action="store_true", help="end at the first violation")
    chosen = parser.parse_args()
    seams.install()
    from simulation.schedule import run_schedule  # noqa: PLC0415 - the client comes after the seams

    seed = time.time_ns() % 1_000_000_000 if chosen.seed is None else chosen.seed
    schedules = chosen.schedules or (QUICK if chosen.quick else SCHEDULES)
    totals = Totals(seed)
    if not chosen.json:
        print(f"{schedules} schedules from seed {seed}")
    gc.collect()
    gc.freeze()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(seed, seed + schedules):
            outcome = run_schedule(number, Path(folder))
            totals.add(outcome)
            if chosen.trace:
                print("\n".join(outcome.trace))
            if outcome.violation is not None:
                print(f"seed {number}: {outcome.violation}", file=sys.stderr)
                again = f"benchmarks/simulation.py --seed {number} --schedules 1 --trace"
                print(f"  python {again}", file=sys.stderr, flush=True)
                if chosen.first:
                    break
            gc.collect(2 if totals.schedules % COLLECTION == 0 else 0)
    print(json.dumps(totals.summary()))
    return 1 if totals.violations else 0


if __name__ == "__main__":
    sys.exit(main())
