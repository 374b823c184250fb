"""benchmarks/outlive.py on stores that lose pages: it has to say so."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from processes.forked_programs import NESTED

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

pytestmark = pytest.mark.slow


def run_outlive(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Runs it with few pages; returns its exit status, its last line and what it said."""
    result = subprocess.run(
        [
            *(sys.executable, "-m", "outlive", "--json", "--pages", "1000", "--clients", "2"),
            *arguments,
        ],
        cwd=BENCHMARKS,
        env={**os.environ, NESTED: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = result.stdout.splitlines()
    assert lines, result.stderr
    return result.returncode, json.loads(lines[-1]), result.stderr


def test_a_store_without_a_holder_loses_everything() -> None:
    """Pages, mappings and holds are gone after a kill, nothing is wrong, and the run fails."""
    status, figures, said = run_outlive(
        *("--kills", "1", "--replacements", "0", "--stops", "0", "--no-holder")
    )
    assert (status, figures["kills"], figures["wrong_pages"]) == (1, 1, 0), said
    assert figures["lost_pages"] > 0.9 * figures["checked_pages"] > 0, said
    assert figures["holds_lost"] == 1, said
    assert figures["mappings_made_anew"] > 0, said


def test_a_store_with_a_holder_loses_nothing() -> None:
    """Every acknowledged page is there after a kill and a replacement, and holds go on."""
    status, figures, said = run_outlive("--kills", "1", "--replacements", "1", "--stops", "1")
    assert status == 0, said
    assert figures["checked_pages"] == figures["found_pages"] + figures["evicted_pages"] > 0
    assert figures["recovered_pages"]["least"] > 0


@pytest.mark.parametrize(
    ("mutant", "rounds", "figure"),
    [
        ("record-after-answer", ("--kills", "2", "--stops", "0"), "lost_pages"),
        ("swapped-data", ("--kills", "1", "--stops", "0"), "clean_starts"),
        ("swapped-tables", ("--kills", "1", "--stops", "0"), "clean_starts"),
        ("two-owners", ("--kills", "0", "--stops", "1"), "second_servers"),
    ],
)
def test_a_fault_is_found(mutant: str, rounds: tuple[str, ...], figure: str) -> None:
    """Lost pages are counted, and a server with swapped descriptors starts clean.

    It starts clean too if pages are lost that somebody holds.
    """
    status, figures, said = run_outlive("--replacements", "0", "--mutant", mutant, *rounds)
    found = figures[figure] + (figures["clean_starts"] if figure == "lost_pages" else 0)
    assert (status, found > 0) == (1, True), said
    assert mutant == "two-owners" or figures["wrong_pages"] == 0, said
