"""Real vLLM engines beside a real store, for run.py."""

import sys
from pathlib import Path

TREE = Path(__file__).parents[3]
# The parts that benchmarks and the cases of other engines share with it.
sys.path += [str(TREE / "benchmarks"), str(TREE / "tests" / "support")]
