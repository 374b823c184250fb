"""benchmarks/gpu_kernels.py on a CPU: the same code, with figures that mean nothing."""

import json
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from processes.benchmark_process import run_benchmark

ARGUMENTS = ("gpu_kernels", "--device", "cpu", "--quick", "--json")


def measured(part: str) -> dict[str, Any]:
    """Returns the output of a run of one part."""
    found: dict[str, Any] = json.loads(run_benchmark(*ARGUMENTS, "--only", part))
    assert found["note"].startswith("no measurement")
    return found


def test_the_engine_decodes() -> None:
    """Each batch of decoding has its rate. The profiler finds no GPU time on a CPU."""
    rows = measured("engine")["engine"]
    assert [row["batch"] for row in rows] == [1, 3]
    assert all(row["tokens_s"] > 0 and row["gpu_busy_share"] is None for row in rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so() -> None:
    """Without a device the benchmark prints that, no figures, and no error."""
    assert run_benchmark("gpu_kernels", "--quick").strip() == "skipped: no CUDA device"


@pytest.mark.skipif(find_spec("triton") is not None, reason="Triton is here")
def test_without_triton_it_says_so() -> None:
    """Without triton the benchmark says so, also in JSON."""
    said = json.loads(run_benchmark(*ARGUMENTS))
    assert said == {"benchmark": "gpu_kernels", "skipped": "skipped: no Triton"}
