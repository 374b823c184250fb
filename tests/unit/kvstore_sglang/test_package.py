"""The package itself: its imports, its version check and its names."""

import subprocess
import sys
from types import ModuleType

import pytest

import kvstore_sglang
from kvstore_sglang.versions import VERSIONS


def test_it_loads_neither_sglang_nor_torch() -> None:
    """SGLang loads the plugin in every process, so it imports nothing large."""
    names = "kvstore_sglang.plugin, kvstore_sglang.engine.settings, kvstore_sglang.engine.salts"
    code = f"import sys, {names}; print(*sorted(sys.modules))"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert "kvstore_sglang.plugin" in loaded
    assert loaded & {"sglang", "torch", "numpy", "transformers", "prometheus_client"} == set()


def test_another_sglang_is_refused_before_its_parts_are_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another SGLang version is refused before any import of its parts fails."""
    monkeypatch.setitem(sys.modules, "sglang", ModuleType("sglang"))
    version = ModuleType("sglang.version")
    monkeypatch.setattr(version, "__version__", "0.5.22", raising=False)
    monkeypatch.setitem(sys.modules, "sglang.version", version)
    monkeypatch.delenv(VERSIONS.any_version, raising=False)
    with pytest.raises(ImportError, match=f"0.5.22.*{VERSIONS.any_version}"):
        _ = kvstore_sglang.KvstoreLinker


def test_it_has_one_name() -> None:
    """An unknown name raises like that of any module."""
    with pytest.raises(AttributeError, match="KvstoreLinkage"):
        _ = kvstore_sglang.KvstoreLinkage
