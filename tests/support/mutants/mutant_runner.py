"""Runs cache machines on whatever ``kvstore`` is first on the path.

``python -m mutants.mutant_runner SEED EXAMPLES TURNS MACHINE...`` exits 0 if nothing was found, and
1 with the failure on stderr. No shrinking: whether it is caught is the question. The
machines take turns, so that what one alone finds does not wait for the others' last example.
"""

import sys
from itertools import product

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from machine import cache_machine
from recoveries import machines


def main() -> int:
    """Runs the machines."""
    number, examples, turns = map(int, sys.argv[1:4])
    chosen = settings(
        max_examples=examples // turns,
        stateful_step_count=50,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    found: list[type[cache_machine.CacheMachine]] = [
        getattr(cache_machine, name, None) or getattr(machines, name) for name in sys.argv[4:]
    ]
    for turn, machine in product(range(turns), found):
        # A class of its own for each: the seed is set on it.
        seeded = seed(number + turn * 1000)(type(machine.__name__, (machine,), {}))
        run_state_machine_as_test(seeded, settings=chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
