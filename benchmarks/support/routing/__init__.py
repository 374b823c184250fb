"""Parts of benchmarks/routing.py."""
