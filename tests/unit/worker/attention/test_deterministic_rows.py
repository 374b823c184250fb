"""The deterministic mode's digests and the cuBLAS settings that it needs."""

import os
from pathlib import Path

import pytest
import torch

from inference_worker.attention import deterministic
from inference_worker.attention.deterministic import (
    WORKSPACE,
    exact_digest,
    fix_workspace,
    processor,
)

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")


class Card:
    """A stand-in for torch's facts of a GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name, self.capability, self.started = "NVIDIA H100", (9, 0), False
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: self.name)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: self.capability)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: self.started)
        monkeypatch.setattr(torch.version, "cuda", "13.0")


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    """Provides a GPU, and an environment without a setting of cuBLAS."""
    # Restores the variable at the end, also if the code sets it.
    monkeypatch.setenv(WORKSPACE, "")
    monkeypatch.delenv(WORKSPACE)
    return Card(monkeypatch)


def test_a_cpu_s_digest_is_of_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processors of one instruction set have two digests, which are the same at each start."""
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(deterministic, "processor", lambda: "GenuineIntel 6 85 7")
    before = "5cd01f6f0f0a99efec8a4dd8d5365ca40da5c43def302dac841a6eaf0ffcf1d8"
    assert exact_digest("ab" * 32, CPU) == before
    monkeypatch.setattr(deterministic, "processor", lambda: "GenuineIntel 6 106 6")
    assert exact_digest("ab" * 32, CPU) != before


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            (
                "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n"
                "model name\t: Xeon: any\nstepping\t: 7\n\nprocessor\t: 1\nmodel\t: 9\n"
            ),
            "GenuineIntel 6 85 7",
        ),
        (
            "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\nCPU revision\t: 1\n",
            "0x41 0xd40 1",
        ),
        ("", ""),
    ],
)
def test_a_processor_is_named_by_its_numbers(tmp_path: Path, text: str, name: str) -> None:
    """Those of the first one; a kernel that tells none leaves the kind that torch knows."""
    facts = tmp_path / "cpuinfo"
    facts.write_text(text)
    assert processor(facts) == name


def test_a_gpu_s_digest_is_of_its_model_and_cuda(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name, capability, CUDA version and workspace change the digest, the number does not."""
    digests = [exact_digest("ab" * 32, GPU)]
    assert exact_digest("ab" * 32, torch.device("cuda", 1)) == digests[0]
    card.name = "NVIDIA H200"
    digests.append(exact_digest("ab" * 32, GPU))
    card.capability = (10, 0)
    digests.append(exact_digest("ab" * 32, GPU))
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    digests.append(exact_digest("ab" * 32, GPU))
    monkeypatch.setenv(WORKSPACE, ":16:8")
    digests.append(exact_digest("ab" * 32, GPU))
    assert len({*digests, exact_digest("ab" * 32, CPU)}) == 6


def test_the_workspace_is_set_before_cuda_starts(card: Card) -> None:
    """The workspace is set for a GPU alone, and a user's value that fixes it stays."""
    fix_workspace(CPU)
    assert WORKSPACE not in os.environ
    fix_workspace(GPU)
    assert os.environ[WORKSPACE] == ":4096:8"
    card.started = True
    fix_workspace(GPU)
    os.environ[WORKSPACE] = ":16:8"
    fix_workspace(GPU)
    assert os.environ[WORKSPACE] == ":16:8"


def test_a_workspace_that_is_not_fixed_is_refused(card: Card) -> None:
    """A workspace that is not fixed, or not to the value that is needed, raises."""
    card.started = True
    with pytest.raises(ValueError, match=r"CUDA has started.*CUBLAS_WORKSPACE_CONFIG=:4096:8"):
        fix_workspace(GPU)
    card.started = False
    os.environ[WORKSPACE] = ":0:0"
    with pytest.raises(ValueError, match=r"is :0:0.*=:4096:8 or .*=:16:8"):
        fix_workspace(GPU)
