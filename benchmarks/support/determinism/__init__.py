"""Parts of benchmarks/determinism.py."""
