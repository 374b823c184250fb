"""Parts of benchmarks/fetch.py."""
