"""Parts of benchmarks/slab.py."""
