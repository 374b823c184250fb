"""`.ci/run` installs the tools, runs every part, and fails if one part fails."""

import os
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / ".ci" / "run"
TOOLS = ["chromium", "promtool", "redis"]
PARTS = ["test", "test-benchmarks", "test-engines", "kernels", "test-routers"]
# Replaces make: prints its target, and fails for the targets of the test.
MAKE = """#!/bin/sh
echo "made $1"
case " $FAILING " in *" $1 "*) exit 2 ;; esac
"""


@pytest.mark.parametrize(
    ("failing", "status"),
    [([], 0), (TOOLS, 0), (["test"], 1), (["test-engines"], 1), (["kernels"], 1), (PARTS, 1)],
)
def test_a_failing_part_fails_the_run(tmp_path: Path, failing: list[str], status: int) -> None:
    """A failing part does not stop the others and is not hidden; a missing tool is only named."""
    make = tmp_path / "make"
    make.write_text(MAKE, encoding="utf-8")
    make.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "FAILING": " ".join(failing)}
    result = subprocess.run([RUN], env=environment, capture_output=True, text=True, check=False)
    lines = result.stdout.splitlines()
    assert result.returncode == status
    assert [line for line in lines if line.startswith("made")] == [
        f"made {each}" for each in (*TOOLS, *PARTS)
    ]
    for tool in TOOLS:
        assert any(f"no {tool}" in line for line in lines) == (tool in failing)
    parts = " ".join(each for each in PARTS if each in failing)
    assert (f".ci/run: failed: make {parts}" == lines[-1]) == (status == 1)
