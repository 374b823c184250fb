"""Parts of benchmarks/replay.py."""
