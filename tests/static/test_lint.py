"""Linters are tests, so that nothing has to be run besides pytest."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "command",
    [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]],
    ids=["ruff-check", "ruff-format", "mypy"],
)
def test_the_linter_has_nothing_to_say(command: list[str]) -> None:
    """Ruff and mypy, with the settings of pyproject.toml, accept the whole tree."""
    result = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_no_file_has_two_sides_of_a_merge() -> None:
    """No tracked file has a line that git writes where two versions of it conflict."""
    found = subprocess.run(
        ["git", "grep", "-lE", "^(<{7}|>{7}) "],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    # 1: git searched, and found none. 128: this is no checkout.
    assert (found.returncode, found.stdout) in {(1, ""), (128, "")}
