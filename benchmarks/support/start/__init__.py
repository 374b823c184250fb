"""Parts of benchmarks/start.py."""
