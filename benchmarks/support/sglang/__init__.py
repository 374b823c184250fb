"""Parts of benchmarks/sglang_servers.py and benchmarks/sglang_stress.py."""
