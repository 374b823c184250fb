"""Faults in store and client that the simulation has to find."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import kvstore
import kvstore_client
from mutants import core as core_mutants
from mutants.mutant import UNCHANGED, Mutant, put_in

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "benchmarks" / "simulation.py"


CLIENT = [
    Mutant(
        "lost-answer-not-given-back",
        "kvstore_client.lifecycle.session",
        "is_unclear",
        "not isinstance(error, StoreRefused) or isinstance(error, Internal)",
        "False",
    ),
    Mutant(
        "released-without-waiting-for-the-device",
        "kvstore_client.pages.held_pages",
        "end_holds",
        "session.wait_for_device()",
        "pass",
    ),
    Mutant(
        "inserted-without-waiting-for-the-device",
        "kvstore_client.pages.reservation",
        "Reservation.insert",
        "session.wait_for_device()",
        "pass",
    ),
    Mutant(
        "release-sent-once",
        "kvstore_client.lifecycle.release_sender",
        "ReleaseSender._send",
        "call()",
        "try:\n    call()\nexcept StoreUnavailable:\n    return",
    ),
    Mutant(
        "next-epoch-before-the-last-hold-ended",
        "kvstore_client.lifecycle.session",
        "Session.drained",
        "self.ended is not None and self._holds == 0",
        "self.ended is not None",
    ),
    Mutant(
        "store-never-asked-again-after-a-timeout",
        "kvstore_client.calls.circuit_breaker",
        "CircuitBreaker.probed",
        "self.state = BreakerState.HALF_OPEN",
        "pass",
    ),
]
# What the cache machine finds, and a few dozen schedules do not: faults that no engine sees, or
# that take a page's rarest turns.
NOT_FOUND = frozenset(
    {
        "extent-destroyed-while-a-process-that-was-given-it-lives",
        "extent-destroyed-while-a-slot-of-it-is-in-use",
        "generation-not-counted",
        "named-pin-answers-for-another-prefix",
        "named-pin-of-one-page-too-few",
        "next-token-lost-with-a-superseded-page",
        "next-token-of-a-removed-page",
        "next-token-replaced",
        "page-lists-sliced-by-token-count",
        "page-published-into-a-retiring-extent-stays",
        "part-pinned-where-all-is-required",
        "partial-page-appended-to-in-place",
        "path-continued-from-a-source",
        "pins-stay-below-a-split",
        "repeated-pin-keeps-its-first-end",
        "retiring-extent-hands-out-slots",
        "slots-of-unmapped-extents-handed-out",
        "source-sought-on-one-side",
    }
)
CORE = [each for each in core_mutants.MUTANTS if each.name not in NOT_FOUND]
STORE = [
    Mutant(
        "lease-left-before-its-use-is-kept",
        "kvstore.core.verbs.lease_lifecycle",
        "Lifecycle._expire_lease",
        "not lease.processes or lease.forsaken",
        "not lease.processes",
    ),
]
MUTANTS = [UNCHANGED, *CORE, *STORE, *CLIENT]


def simulate(
    *arguments: object, packages: Path | None = None, hash_seed: int = 0
) -> subprocess.CompletedProcess[str]:
    """Runs the simulation in a process of its own, on the packages in a folder, or on ours."""
    ours = (Path(kvstore.__file__).parents[1], Path(kvstore_client.__file__).parents[1])
    paths = ours if packages is None else (packages,)
    return subprocess.run(
        [sys.executable, PROGRAM, "--json", *map(str, arguments)],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": ":".join(map(str, paths)),
            "PYTHONHASHSEED": str(hash_seed),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def simulate_with(
    mutant: Mutant, folder: Path, *arguments: object
) -> subprocess.CompletedProcess[str]:
    """Runs the simulation on a copy of store and client with a mutant's change."""
    for package in (kvstore, kvstore_client):
        source = Path(str(package.__file__)).parent
        target = folder / source.name
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    put_in(mutant, folder)
    return simulate("--first", *arguments, packages=folder)
