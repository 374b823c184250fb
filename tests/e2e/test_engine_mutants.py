"""Faults put into the engine on purpose, each of which a test of the engine must catch.

A mutant is the worker's source with one change, in a folder of its own. A process of its own runs
the test on it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import inference_worker
from mutants.engine import MUTANTS, TESTS
from mutants.mutant import UNCHANGED, Mutant, put_in
from processes.forked_programs import ANEW, NESTED


def run(mutant: Mutant, names: tuple[str, ...], folder: Path) -> "subprocess.CompletedProcess[str]":
    """Runs a mutant's tests on a copy of the worker with its change.

    The process is a fork that already has torch and everything else except the worker and one
    plugin of pytest. That plugin rewrites assertions when it is imported.
    """
    source = Path(inference_worker.__file__).parent
    shutil.copytree(source, folder / source.name)
    put_in(mutant, folder)
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    forked = {NESTED: "1", ANEW: "anyio inference_worker"}
    tests = [str(TESTS / name) for name in names]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", *tests],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **forked},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("mutant", "names"), MUTANTS, ids=[each.name for each, _ in MUTANTS])
def test_a_fault_in_the_engine_is_caught(
    mutant: Mutant, names: tuple[str, ...], tmp_path: Path
) -> None:
    """The test fails by an assertion on each mutant, and passes on the unchanged engine."""
    outcome = run(mutant, names, tmp_path)
    if mutant == UNCHANGED:
        assert outcome.returncode == 0, outcome.stdout[-2000:]
    else:
        assert outcome.returncode == 1, f"{mutant.name} survived"
        assert "AssertionError" in outcome.stdout or "assert " in outcome.stdout
        assert "1 failed" in outcome.stdout, outcome.stdout[-2000:]
