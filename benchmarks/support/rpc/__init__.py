"""Parts of benchmarks/rpc.py."""
