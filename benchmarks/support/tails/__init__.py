"""Parts of benchmarks/tails.py."""
