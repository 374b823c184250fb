"""Tests with vLLM's own classes run in its environment alone, by `make test-vllm`."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]
