"""Parts of benchmarks/index.py."""
