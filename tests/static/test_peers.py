"""The packages of the environments of peers, vLLM and SGLang are pinned."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VLLM = ROOT / "tests" / "vllm" / "vllm_requirements.txt"
SGLANG = ROOT / "tests" / "sglang" / "sglang_requirements.txt"
PEERS = sorted((ROOT / "benchmarks" / "peers").glob("*_requirements.txt"))
REQUIREMENTS = [*PEERS, VLLM, SGLANG]
# The engines take older ones of these than the project has.
OLDER = frozenset({"openai", "setuptools", "transformers"})


def pins(path: Path) -> dict[str, str]:
    """Returns the version that each line names; raises for a line that names none exactly."""
    lines = path.read_text(encoding="utf-8").splitlines()
    matches = [re.fullmatch(r"([\w.-]+)==([\w.]+)", line) for line in lines if line[:1] != "#"]
    assert all(matches), f"{path.name} has a line that is no pin"
    return {match[1].lower(): match[2] for match in matches if match}


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.stem)
def test_a_peer_s_requirements_are_pinned(path: Path) -> None:
    """Every line names one version, and torch is the one that ours is measured with."""
    peer = pins(path)
    assert len(peer) > 1
    assert peer.get("torch", "") in ("", pins(ROOT / "constraints.txt")["torch"])


def test_lmcache_is_the_version_that_figures_name() -> None:
    """The results say which LMCache was measured: it is the one that is installed."""
    source = (ROOT / "benchmarks" / "peers" / "lmcache_peer.py").read_text(encoding="utf-8")
    version = pins(ROOT / "benchmarks" / "peers" / "lmcache_requirements.txt")["lmcache"]
    assert f'VERSION = "{version}"' in source


@pytest.mark.parametrize("path", [VLLM, SGLANG], ids=lambda path: path.stem)
def test_an_engine_s_environment_has_our_versions(path: Path) -> None:
    """A package in both an engine's environment and ours has the same version."""
    ours, engine = pins(ROOT / "constraints.txt"), pins(path)
    shared = (ours.keys() & engine.keys()) - OLDER
    assert {"grpcio", "protobuf", "torch"} <= shared
    assert {name: engine[name] for name in shared} == {name: ours[name] for name in shared}


def test_every_environment_has_one_sglang() -> None:
    """The linker is tested with the version whose prefix caches are measured."""
    measured = ROOT / "benchmarks" / "peers" / "sglang_requirements.txt"
    assert pins(SGLANG)["sglang"] == pins(measured)["sglang"]
