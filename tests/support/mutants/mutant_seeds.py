"""Seeds from which a fault of the core is found within a few examples.

``PYTHONPATH=tests/support python -m mutants.mutant_seeds`` looks for those that find nothing any
more, or are not there, and writes what it finds beside this file. The machine's rules decide what
a seed comes to.
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path

from mutants.mutant import Mutant
from mutants.mutant_hunt import ALL, Hunt, Look, is_found, machines_for

PATH = Path(__file__).with_suffix(".json")
EXAMPLES = 9
MOST_SEEDS = 60


def known_looks() -> Mapping[str, Look]:
    """Returns for each mutant with a known seed the look that finds it."""
    known = json.loads(PATH.read_text(encoding="utf-8"))
    return {
        name: Look([machine], seed, examples, turns=1)
        for name, (machine, seed, examples) in known.items()
    }


def find(hunt: Hunt, mutant: Mutant) -> Look | None:
    """Returns a short look that finds a mutant."""
    for seed, machine in product(range(1, MOST_SEEDS), machines_for(mutant)):
        look = Look([machine], seed, EXAMPLES, turns=1)
        if is_found(hunt.look(mutant, look)):
            return look
    return None


def main() -> int:
    """Looks for what is missing; 1 if a mutant was not found."""
    known = known_looks()
    found: dict[str, Look] = {}
    missing = 0
    with tempfile.TemporaryDirectory() as folder, Hunt(Path(folder)) as hunt:
        for mutant in ALL:
            look = known.get(mutant.name)
            if look is None or not is_found(hunt.look(mutant, look)):
                look = find(hunt, mutant)
                print(mutant.name, "not found" if look is None else look, flush=True)  # noqa: T201
            if look is None:
                missing += 1
            else:
                found[mutant.name] = look
    lines = [
        f"{json.dumps(name)}: {json.dumps([*look.machines, look.seed, look.examples])}"
        for name, look in sorted(found.items())
    ]
    PATH.write_text("{\n  " + ",\n  ".join(lines) + "\n}\n", encoding="utf-8")
    return min(missing, 1)


if __name__ == "__main__":
    sys.exit(main())
