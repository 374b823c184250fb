"""Parts of benchmarks/vllm_servers.py."""
