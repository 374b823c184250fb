"""What the package is by itself."""

import subprocess
import sys

import pytest

import kvstore_vllm


def test_it_loads_neither_vllm_nor_torch() -> None:
    """Its parts without vLLM are there for whoever has none."""
    modules = "settings, identity, request_key, versions, page_layout, adapters"
    code = f"import sys; from kvstore_vllm import {modules}; print(*sorted(sys.modules))"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert "kvstore_vllm.identity" in loaded
    assert loaded & {"vllm", "torch", "transformers", "huggingface_hub"} == set()


def test_it_has_one_name() -> None:
    """A name that it does not have is missed as any module's."""
    with pytest.raises(AttributeError, match="Konnector"):
        _ = kvstore_vllm.Konnector
