"""Faults put into the core on purpose: each has to be caught by the cache machine.

A mutant is the core's source with one place changed, in a folder of its own,
run in a process of its own. `ci` and `dev` look first where it is known to be found, within a
few examples; where that finds nothing, and in `nightly`, it is looked for from fixed seeds.
"""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

from mutants.mutant import UNCHANGED, Mutant
from mutants.mutant_hunt import ALL, Hunt, Look, is_found, machines_for
from mutants.mutant_seeds import known_looks

SEEDS = (7, 20_26, 11)
EXAMPLES = 90
TURNS = 6
# Of the core as it is, which other tests run the machine on at length.
FEW_EXAMPLES = 18
NIGHTLY = settings().max_examples > 1_000
KNOWN = {} if NIGHTLY else known_looks()


@pytest.fixture(scope="module")
def hunt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hunt]:
    """Returns what looks for mutants."""
    with Hunt(tmp_path_factory.mktemp("mutants")) as made:
        yield made


@pytest.mark.slow
def test_the_core_as_it_is_passes(hunt: Hunt) -> None:
    """The machines find nothing where nothing was changed."""
    outcome = hunt.look(UNCHANGED, Look(machines_for(UNCHANGED), SEEDS[0], FEW_EXAMPLES, TURNS))
    assert outcome.returncode == 0, outcome.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_fault_in_the_core_is_caught(
    hunt: Hunt, mutant: Mutant, record_property: Callable[[str, object], None]
) -> None:
    """The cache machine fails on each mutant, by a rule or an invariant after a step."""
    known = KNOWN.get(mutant.name)
    if known is not None and is_found(hunt.look(mutant, known)):
        return
    if not NIGHTLY:
        command = "PYTHONPATH=tests/support python -m mutants.mutant_seeds"
        text = f"{mutant.name} needs another seed: {command}"
        record_property("summary", text)
    for seed in SEEDS:
        outcome = hunt.look(mutant, Look(machines_for(mutant), seed, EXAMPLES, TURNS))
        if outcome.returncode:
            break
    assert outcome.returncode == 1, f"{mutant.name} survived"
    assert is_found(outcome), outcome.stderr[-2000:]
