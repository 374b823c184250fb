"""Parts of benchmarks/remote.py."""
