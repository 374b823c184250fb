"""Prometheus' own checker, where it was installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OWN = ROOT / ".tools" / "usr" / "bin" / "promtool"


def promtool(*arguments: str, given: str = "") -> str:
    """Runs it and returns what it said; skips where it is not there, fails where it complains."""
    program = str(OWN) if OWN.exists() else shutil.which("promtool")
    if program is None:
        pytest.skip("needs promtool: `make promtool` gets Debian's")
    result = subprocess.run(
        [program, *arguments], input=given, capture_output=True, text=True, timeout=60, check=False
    )
    said = result.stdout + result.stderr
    assert result.returncode == 0, said
    return said
