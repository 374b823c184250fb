"""Store and clients in simulated time: schedules of everything that goes wrong, by seeds.

docs/simulation.md says what is real in it. `benchmarks/simulation.py` runs more of them.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from mutants.mutant import UNCHANGED, Mutant
from mutants.simulation import MUTANTS, simulate, simulate_with

SEED = 20_27
# By hypothesis's profile, as all that is generated: `dev`, `ci`, or `nightly` for the most.
EXAMPLES = settings().max_examples
SCHEDULES = min(max(40, EXAMPLES // 5), 2_000)
NIGHTLY = EXAMPLES > 1_000
# A fault that is not found in as many schedules counts as not found.
MUTANT_SCHEDULES = 150
# Found within a few schedules each; `nightly` looks for all that are known to be found.
QUICK = (
    "unchanged",
    "living-holder-past-its-ttl-loses-its-slots",
    "lost-answer-not-given-back",
    "inserted-without-waiting-for-the-device",
    "store-never-asked-again-after-a-timeout",
)
# What schedules have to come to, or they show little: calls that were answered, and refusals.
VERBS = [
    "AbortReservation",
    "AcquirePrefix",
    "DeleteNamespace",
    "EvictPrefix",
    "GetCapabilities",
    "GrantLease",
    "InsertPrefix",
    "MatchPrefix",
    "OpenNamespace",
    "PeekPrefix",
    "PinPrefix",
    "ReleasePins",
    "RenewLease",
    "ReservePages",
    "RevokeLease",
    "UnpinPrefix",
]
REASONS = [
    "OK",
    "CREDENTIAL_REQUIRED",
    "INVALID_FIELD",
    "LEASE_NOT_FOUND",
    "POOL_EXHAUSTED",
    "TOMBSTONED",
]
FAULTS = [
    "cut_connections",
    "duplicated",
    "ended_servers",
    "killed_stores",
    "killed_workers",
    "late",
    "lost_answers",
    "lost_requests",
    "outages",
    "stopped_workers",
]


def test_nothing_is_wrong_in_any_schedule(record_property: Callable[[str, object], None]) -> None:
    """Whatever is lost, late, stopped or killed: no page is wrong, nothing leaks, nobody waits."""
    outcome = simulate("--seed", SEED, "--schedules", SCHEDULES)
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    summary = json.loads(outcome.stdout.splitlines()[-1])
    reasons = {name: sum(verbs.values()) for name, verbs in summary["reasons"].items()}
    record_property("summary", f"simulation, {SCHEDULES} schedules from {SEED}: {reasons}")
    assert summary["schedules"] == SCHEDULES
    assert [each for each in VERBS if not summary["reasons"]["OK"].get(each)] == []
    assert [each for each in REASONS if not reasons.get(each)] == []
    assert [each for each in FAULTS if not summary.get(each)] == []
    assert "INTERNAL" not in reasons
    assert summary["yields"] > SCHEDULES / 4


def test_a_seed_is_one_schedule() -> None:
    """The same seeds take the same steps in another process, however it orders sets of bytes."""
    outcomes = [
        simulate("--seed", SEED, "--schedules", 4, "--trace", hash_seed=seed) for seed in (1, 2)
    ]
    traces = [each.stdout.splitlines()[:-1] for each in outcomes]
    assert len(traces[0]) > 100
    assert traces[0] == traces[1]


def chosen_mutants() -> list[Mutant]:
    """Returns the mutants to look for: all of them takes minutes."""
    return [each for each in MUTANTS if NIGHTLY or each.name in QUICK]


@pytest.mark.parametrize("mutant", chosen_mutants(), ids=lambda mutant: mutant.name)
def test_a_fault_put_in_is_found(mutant: Mutant, tmp_path: Path) -> None:
    """The simulation fails on a mutant, and passes on store and client as they are."""
    schedules = 20 if mutant == UNCHANGED else MUTANT_SCHEDULES
    outcome = simulate_with(mutant, tmp_path, "--seed", SEED, "--schedules", schedules)
    if mutant == UNCHANGED:
        assert outcome.returncode == 0, outcome.stderr[-3000:]
    else:
        assert "--trace" in outcome.stderr, f"{mutant.name} survived: {outcome.stderr[-2000:]}"
