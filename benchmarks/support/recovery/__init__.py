"""Parts of benchmarks/recovery.py."""
