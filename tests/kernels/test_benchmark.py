"""benchmarks/gpu_kernels.py on a CPU, by Triton's interpreter: its figures mean nothing."""

import json
from typing import Any

from processes.benchmark_process import run_benchmark


def measured(part: str) -> list[dict[str, Any]]:
    """Returns the rows of a run of one part."""
    found = json.loads(
        run_benchmark("gpu_kernels", "--device", "cpu", "--quick", "--json", "--only", part)
    )
    assert found["note"].startswith("no measurement")
    rows: list[dict[str, Any]] = found[part]
    return rows


def test_kernels_are_timed_beside_a_copy() -> None:
    """Each mix has the time of each kernel, and the share of a plain copy's rate."""
    rows = measured("kernels")
    assert {row["mix"] for row in rows} == {"uniform", "one long", "beside a prefill"}
    for row in rows:
        assert {"write", "attend"} <= set(row["us"]) <= {"write", "attend", "merge"}
        assert min(row["us"].values()) > 0
        assert set(row["share_of_copy"]) == set(row["us"])
    assert any("merge" in row["us"] for row in rows)


def test_shapes_are_swept() -> None:
    """Each shape has its time."""
    rows = measured("sweep")
    shapes = {(row["programs"], row["stages"], row["keys"]) for row in rows}
    assert shapes == {(programs, stages, 32) for programs in (2, 4) for stages in (2, 3)}
    assert all(row["layer_us"] > 0 for row in rows)
