"""Faults put into the core on purpose: each has to be caught by the cache machine.

A mutant is the core's source with one place changed, in a folder of its own,
run in a process of its own with a fixed seed, and with others where that finds nothing.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from core_mutants import MUTANTS, Mutant
from event_mutants import EVENT_MUTANTS, OF_TWO_TIERS
from index_mutants import INDEX_MUTANTS
from mutants import put_in
from prefill_mutants import PREFILL_MUTANTS
from third_mutants import THIRD_MUTANTS, THIRD_TIER_MUTANTS
from tier_mutants import TIER_MUTANTS
from verifying_mutants import VERIFYING_MUTANTS

import kvstore

SEEDS = (7, 20_26, 11)
EXAMPLES = 90
# Of the core as it is, which other tests run the machine on at length.
FEW_EXAMPLES = 18
WITH_TIERS = [*TIER_MUTANTS, *THIRD_TIER_MUTANTS]
# What does not depend on the pages' size or the index is looked for by one machine.
MACHINES = {
    **{mutant.name: ["TwoTiers"] for mutant in WITH_TIERS},
    **{
        mutant.name: ["CacheMachine"]
        for mutant in [*THIRD_MUTANTS, *PREFILL_MUTANTS, *EVENT_MUTANTS]
    },
    **{name: ["TwoTiers"] for name in OF_TWO_TIERS},
}
SUPPORT = Path(__file__).parents[1] / "support"


def run(mutant: Mutant, folder: Path, seed: int) -> subprocess.CompletedProcess[str]:
    """Run the machine on a copy of the core with the mutant's change."""
    source = Path(kvstore.__file__).parent
    copy = folder / "kvstore"
    shutil.copytree(source / "core", copy / "core", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "errors.py"):
        shutil.copy(source / name, copy / name)
    put_in(mutant, copy / "core" / mutant.file)
    examples = FEW_EXAMPLES if mutant.name == "unchanged" else EXAMPLES
    return subprocess.run(
        [
            *(sys.executable, SUPPORT / "mutant_runner.py", str(seed), str(examples)),
            *MACHINES.get(mutant.name, []),
        ],
        env={"PYTHONPATH": f"{folder}:{SUPPORT}", "PYTHONHASHSEED": "0"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant",
    [
        *MUTANTS,
        *INDEX_MUTANTS,
        *WITH_TIERS,
        *VERIFYING_MUTANTS,
        *THIRD_MUTANTS,
        *PREFILL_MUTANTS,
        *EVENT_MUTANTS,
    ],
    ids=lambda mutant: mutant.name,
)
def test_a_fault_in_the_core_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    """The cache machine fails on each mutant, and passes on the core as it is."""
    for seed in SEEDS:
        outcome = run(mutant, tmp_path / str(seed), seed)
        if mutant.name == "unchanged" or outcome.returncode:
            break
    if mutant.name == "unchanged":
        assert outcome.returncode == 0, outcome.stderr[-2000:]
    else:
        # Found by a rule or an invariant after a step, not by code that does not even load.
        assert outcome.returncode == 1, f"{mutant.name} survived"
        assert "state.teardown()" in outcome.stderr, outcome.stderr[-2000:]
