"""Parts of benchmarks/stall.py."""
