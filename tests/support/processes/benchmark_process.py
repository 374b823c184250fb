"""Runs a benchmark to its end, as a fork of a process that imported what it is made of."""

import os
import subprocess
import sys
from pathlib import Path

from processes.forked_programs import NESTED

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def run_benchmark(name: str, *arguments: str, timeout: float = 120) -> str:
    """Runs ``benchmarks/NAME.py``, whose own programs are forked too, and returns its output."""
    result = subprocess.run(
        [sys.executable, "-m", name, *arguments],
        cwd=BENCHMARKS,
        env={**os.environ, NESTED: "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
