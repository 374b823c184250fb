"""Parts of benchmarks/workloads.py."""
