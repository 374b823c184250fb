"""Looks for a fault of the core with the cache machine: each look is a process of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from compileall import compile_dir
from pathlib import Path
from typing import NamedTuple, Self

import kvstore
from mutants.checksums import CHECKSUM_MUTANTS
from mutants.core import MUTANTS
from mutants.disk import DISK_AND_HOST_MUTANTS, DISK_MUTANTS, RUN_MUTANTS
from mutants.events import EVENT_MUTANTS, OF_TWO_TIERS
from mutants.group_pages import GROUP_MUTANTS
from mutants.index import INDEX_MUTANTS
from mutants.journal import AHEAD_MUTANTS, JOURNAL_MUTANTS, OF_GROUPS, OF_TIERS
from mutants.mutant import Mutant, put_in
from mutants.prefills import PREFILL_MUTANTS
from mutants.tiers import TIER_MUTANTS
from processes.forked_programs import ANEW, FORKERS, ForkedPrograms, Forker

SUPPORT = Path(__file__).parents[1]
RUNNER = "mutants.mutant_runner"
WITH_TIERS = [*TIER_MUTANTS, *DISK_AND_HOST_MUTANTS]
ALL = [
    *MUTANTS,
    *INDEX_MUTANTS,
    *WITH_TIERS,
    *CHECKSUM_MUTANTS,
    *DISK_MUTANTS,
    *RUN_MUTANTS,
    *PREFILL_MUTANTS,
    *EVENT_MUTANTS,
    *GROUP_MUTANTS,
    *JOURNAL_MUTANTS,
    *AHEAD_MUTANTS,
]
MACHINES = ("CacheMachine", "OneTokenPages", "HashedPages")
# What does not depend on the pages' size or the index is looked for by one machine.
BY_ONE: Mapping[str, Sequence[str]] = {
    **{mutant.name: ["TwoTiers"] for mutant in WITH_TIERS},
    **{
        mutant.name: ["CacheMachine"]
        for mutant in [*DISK_MUTANTS, *PREFILL_MUTANTS, *EVENT_MUTANTS]
    },
    **{mutant.name: ["PagesInRuns"] for mutant in RUN_MUTANTS},
    **{name: ["TwoTiers"] for name in OF_TWO_TIERS},
    **{mutant.name: ["GroupedPages"] for mutant in GROUP_MUTANTS},
    **{mutant.name: ["Journaled"] for mutant in JOURNAL_MUTANTS},
    **{mutant.name: ["Ahead"] for mutant in AHEAD_MUTANTS},
    **{name: ["JournaledGroups"] for name in OF_GROUPS},
    **{name: ["JournaledTiers"] for name in OF_TIERS},
}


class Look(NamedTuple):
    """Machines that take turns, from a seed, with so many examples each in all."""

    machines: Sequence[str]
    seed: int
    examples: int
    turns: int


class Hunt:
    """A context manager that runs machines on copies of the core, in forks of one process."""

    def __init__(self, folder: Path) -> None:
        """Copies and compile the core into ``folder``, where the mutants will be, too."""
        self._folder = folder
        self._copies = 0
        source = Path(kvstore.__file__).parent
        self._core = folder / "unchanged" / "kvstore"
        # The machines have journals in real memory too.
        for name in ("core", "ring", "succession"):
            shutil.copytree(source / name, self._core / name)
        for name in ("__init__.py", "errors.py"):
            shutil.copy2(source / name, self._core / name)
        compile_dir(self._core, quiet=1)
        # What a seed comes to depends on the order of sets of bytes.
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(SUPPORT)}
        self._environment = {**environment, ANEW: "kvstore"}
        self._programs = ForkedPrograms(Forker.start(FORKERS[RUNNER], environment))
        self._programs.install()

    def look(self, mutant: Mutant, look: Look) -> subprocess.CompletedProcess[str]:
        """Runs machines on a copy with the mutant's change: 1 and a traceback if it is found."""
        self._copies += 1
        folder = self._folder / str(self._copies)
        shutil.copytree(self._core, folder / "kvstore")
        put_in(mutant, folder)
        arguments = (look.seed, look.examples, look.turns, *look.machines)
        self._programs.on = True
        outcome = subprocess.run(
            [sys.executable, "-m", RUNNER, *map(str, arguments)],
            cwd=folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        self._programs.on = False
        shutil.rmtree(folder)
        return outcome

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._programs.close()


def machines_for(mutant: Mutant) -> Sequence[str]:
    """Returns the machines that look for a mutant."""
    return BY_ONE.get(mutant.name, MACHINES)


def is_found(outcome: subprocess.CompletedProcess[str]) -> bool:
    """Returns whether a rule or an invariant failed after a step, not code that does not load."""
    return outcome.returncode == 1 and "state.teardown()" in outcome.stderr
