"""Runs the cache machine on whatever ``kvstore`` is first on the path.

``python mutant_runner.py SEED EXAMPLES [MACHINE]`` exits 0 if nothing was found, and 1
with the failure on stderr. No shrinking: whether it is caught is the question. The
machines take turns, so that what one alone finds does not wait for the others' last example.
"""

import sys
from itertools import product

import cache_machine
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

TURNS = 6


def main() -> int:
    """Run one machine, or those of page size 1 and 2, and the one of the other index."""
    number, examples = int(sys.argv[1]), int(sys.argv[2])
    chosen = settings(
        max_examples=examples // TURNS,
        stateful_step_count=50,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    machines: tuple[type[cache_machine.CacheMachine], ...] = (
        cache_machine.CacheMachine,
        cache_machine.OneTokenPages,
        cache_machine.HashedPages,
    )
    if sys.argv[3:]:
        machines = (getattr(cache_machine, sys.argv[3]),)
    for turn, machine in product(range(TURNS), machines):
        # A class of its own for each: the seed is set on it.
        seeded = seed(number + turn * 1000)(type(machine.__name__, (machine,), {}))
        run_state_machine_as_test(seeded, settings=chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
