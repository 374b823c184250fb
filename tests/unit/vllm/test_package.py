"""The package itself: its imports, its version check and its names."""

import subprocess
import sys
from types import ModuleType

import pytest

import kvstore_vllm
from kvstore_vllm.versions import VERSIONS


def test_it_loads_neither_vllm_nor_torch() -> None:
    """The package imports neither vLLM nor torch, so its other parts work without them."""
    modules = ("engine.connector_settings", "identity.model", "identity.request_key", "versions")
    modules += ("blocks.engine_layout", "identity.adapters")
    names = ", ".join(f"kvstore_vllm.{each}" for each in modules)
    code = f"import sys, {names}; print(*sorted(sys.modules))"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert "kvstore_vllm.identity.model" in loaded
    assert loaded & {"vllm", "torch", "transformers", "huggingface_hub"} == set()


def test_another_vllm_is_refused_before_its_parts_are_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another vLLM version is refused before any import of its parts fails."""
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    version = ModuleType("vllm.version")
    monkeypatch.setattr(version, "__version__", "0.31.0", raising=False)
    monkeypatch.setitem(sys.modules, "vllm.version", version)
    monkeypatch.delenv(VERSIONS.any_version, raising=False)
    with pytest.raises(ImportError, match=f"0.31.0.*{VERSIONS.any_version}"):
        _ = kvstore_vllm.KvstoreConnector


def test_it_has_one_name() -> None:
    """An unknown name raises like that of any module."""
    with pytest.raises(AttributeError, match="Konnector"):
        _ = kvstore_vllm.Konnector
