"""benchmarks/gpu_kernels.py on a CPU, where its figures mean nothing and its code is the same."""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from benchmark_process import run_benchmark

ARGUMENTS = ("gpu_kernels", "--device", "cpu", "--quick", "--json")


def measured(part: str) -> dict[str, Any]:
    """Return what a run of one part printed."""
    found: dict[str, Any] = json.loads(run_benchmark(*ARGUMENTS, "--only", part))
    assert found["note"].startswith("no measurement")
    return found


def test_the_engine_decodes() -> None:
    """Each batch has its rate; no profiler sees a GPU's time here."""
    rows = measured("engine")["engine"]
    assert [row["batch"] for row in rows] == [1, 3]
    assert all(row["tokens_s"] > 0 and row["gpu_busy_share"] is None for row in rows)


@pytest.fixture
def interpreter() -> Iterator[None]:
    """Run kernels in Triton's interpreter, in the benchmark's process."""
    if torch.cuda.is_available():
        pytest.skip("the benchmark itself runs where there is a GPU")
    # The interpreter of those before fails with the NumPy of constraints.txt.
    pytest.importorskip("triton", "3.8", reason="needs Triton 3.8, for its interpreter")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield


@pytest.mark.usefixtures("interpreter")
def test_kernels_are_timed_beside_a_copy() -> None:
    """Each mix has the time of each kernel, and the share of a plain copy's rate."""
    rows = measured("kernels")["kernels"]
    assert {row["mix"] for row in rows} == {"uniform", "one long", "beside a prefill"}
    for row in rows:
        assert {"write", "attend"} <= set(row["us"]) <= {"write", "attend", "merge"}
        assert min(row["us"].values()) > 0
        assert set(row["share_of_copy"]) == set(row["us"])
    assert any("merge" in row["us"] for row in rows)


@pytest.mark.usefixtures("interpreter")
def test_shapes_are_swept() -> None:
    """Each shape has its time."""
    rows = measured("sweep")["sweep"]
    shapes = {(row["programs"], row["stages"], row["keys"]) for row in rows}
    assert shapes == {(programs, stages, 32) for programs in (2, 4) for stages in (2, 3)}
    assert all(row["layer_us"] > 0 for row in rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so() -> None:
    """No figures, no error."""
    assert run_benchmark("gpu_kernels", "--quick").strip() == "skipped: no CUDA device"


@pytest.mark.skipif(find_spec("triton") is not None, reason="Triton is here")
def test_without_triton_it_says_so() -> None:
    """As JSON too."""
    said = json.loads(run_benchmark(*ARGUMENTS))
    assert said == {"benchmark": "gpu_kernels", "skipped": "skipped: no Triton"}
