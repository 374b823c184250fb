"""Runs tests/support/simulation, which is a test as much as a benchmark: see its ``__main__``."""

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE.parent / "tests" / "support"), str(HERE)]
runpy.run_module("simulation", run_name="__main__", alter_sys=True)
