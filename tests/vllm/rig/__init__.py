"""Real vLLM engines beside a real store, for run.py."""

import sys
from pathlib import Path

TREE = Path(__file__).parents[3]
# The parts that the cases of other engines and benchmarks share with it. Packages of the former
# have names of some benchmarks.
sys.path += [str(TREE / "tests" / "support"), str(TREE / "benchmarks")]
