"""Real vLLM engines beside a real store, for run.py."""

import sys
from pathlib import Path

# What it shares with benchmarks.
sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
