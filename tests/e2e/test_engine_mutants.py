"""Faults put into the engine on purpose: each has to be caught by a test of the engine.

A mutant is the worker's source with one place changed, in a folder of its own, against which
that test runs in a process of its own.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from forked_programs import ANEW, NESTED
from mutants import put_in

import inference_worker

TESTS = Path(__file__).parents[1] / "unit" / "worker"
SAMPLE = "test_engine_reuse.py::test_a_sample_is_never_a_next_token"
PARTIAL = "sequence/test_source_pages.py::test_a_partial_page_is_never_written_again"
RECYCLED = "test_recycled_pages.py::test_pages_recycled_under_a_request_change_no_token"
YOUNGEST = "../scheduler/test_scheduler.py::test_the_youngest_gives_way_and_comes_back_first"
OLDEST = (
    "../scheduler/test_scheduler.py::test_most_cached_goes_first_and_one_in_so_many_is_the_oldest"
)
COPIED = "test_recycled_pages.py::test_a_source_recycled_before_its_copy_changes_no_token"
PIN = "sequence/test_source_pages.py::test_the_source_is_given_back_when_it_is_copied"


class Mutant(NamedTuple):
    """One fault: in ``file``, ``old`` (which stands there once) becomes ``new``."""

    name: str
    tests: tuple[str, ...]
    file: str
    old: str
    new: str


MUTANTS = [
    Mutant(
        "unchanged",
        (PARTIAL, YOUNGEST),
        "request_run.py",
        "",
        "",
    ),
    Mutant(
        "the-oldest-gives-way",
        (YOUNGEST,),
        "scheduler.py",
        "self._preempt(max(self._running), supply, now)",
        "self._preempt(min(self._running), supply, now)",
    ),
    Mutant(
        "the-longest-match-for-ever",
        (OLDEST,),
        "scheduler_queue.py",
        "if resumed or self._passes >= PATIENCE:",
        "if resumed:",
    ),
    Mutant(
        "sampled-token-stored-as-next-token",
        (SAMPLE,),
        "request_run.py",
        "best = {self._computed: choice.argmax}",
        "best = {self._computed: choice.token}",
    ),
    Mutant(
        "partial-page-appended-in-place",
        (PARTIAL,),
        "sequence_pages.py",
        "self._pool.copy_page(_place(self._source.page), self.table[len(self._matched)])",
        "self.table.replace(len(self._matched), _place(self._source.page))",
    ),
    Mutant(
        "source-kept-after-the-copy",
        (PIN,),
        "sequence_pages.py",
        "            self._source.release()\n            self._source = None\n",
        "            self._source = None\n",
    ),
    Mutant(
        "generations-not-compared",
        (RECYCLED,),
        "sequence_pages.py",
        "            self._acquired.require_current()\n",
        "            pass\n",
    ),
    Mutant(
        "generation-of-the-source-not-compared",
        (COPIED,),
        "sequence_pages.py",
        "            self._source.require_current()\n",
        "",
    ),
]


def run(mutant: Mutant, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a mutant's tests on a copy of the worker with its change.

    In a fork of a process that has torch and all else but the worker itself, and but one of
    pytest's plugins, whose assertions it wants to rewrite as it imports it.
    """
    source = Path(inference_worker.__file__).parent
    shutil.copytree(source, folder / source.name)
    put_in(mutant, folder / source.name / mutant.file)
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    forked = {NESTED: "1", ANEW: "anyio inference_worker"}
    tests = [str(TESTS / test) for test in mutant.tests]
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
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_in_the_engine_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    """The test fails by an assertion on each mutant, and passes on the engine as it is."""
    outcome = run(mutant, tmp_path)
    if mutant.name == "unchanged":
        assert outcome.returncode == 0, outcome.stdout[-2000:]
    else:
        assert outcome.returncode == 1, f"{mutant.name} survived"
        assert "AssertionError" in outcome.stdout or "assert " in outcome.stdout
        assert "1 failed" in outcome.stdout, outcome.stdout[-2000:]
