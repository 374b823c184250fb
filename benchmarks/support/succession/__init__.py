"""Parts of benchmarks/outlive.py."""
