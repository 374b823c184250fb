"""The kernels become what they should on a Hopper GPU: compiling for one takes none."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"
# What one program may have of it there, in bytes.
SHARED_MEMORY = 227 << 10


def run(program: str) -> dict[str, dict[str, int]]:
    """Run a program of support/ in a process where no interpreter is in the way."""
    if find_spec("triton") is None:
        pytest.skip("needs Triton, for its compiler")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(SUPPORT / program)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    counts: dict[str, dict[str, int]] = json.loads(result.stdout)
    return counts


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, int]]:
    """Each kernel's instructions."""
    return run("compile_kernels.py")


@pytest.mark.parametrize("kernel", ["prefill", "decode"])
def test_pages_are_read_16_bytes_at_a_time(found: dict[str, dict[str, int]], kernel: str) -> None:
    """Keys and values go to shared memory in asynchronous copies of 16 bytes, ahead of their use.

    That is what ``cg`` stands for; it needs places that are known to be multiples of 16 bytes.
    """
    copies = {name: n for name, n in found[kernel].items() if name.startswith("cp.async.cg")}
    assert sum(copies.values()) >= 16
    assert not {name for name in found[kernel] if name.startswith("ld.global.b16")}


def test_tiles_are_multiplied_by_tensor_cores(found: dict[str, dict[str, int]]) -> None:
    """A prefill takes Hopper's own instructions, a decode of few rows the older ones."""
    assert found["prefill"]["wgmma.mma_async"] > 0
    assert found["decode"]["mma.sync"] > 0


def test_keys_are_written_16_bytes_at_a_time(found: dict[str, dict[str, int]]) -> None:
    """Writing a token moves vectors, and a token at a time nothing smaller."""
    stores = {name for name in found["write"] if name.startswith("st.global")}
    assert stores == {"st.global.v4.b32"}


def test_what_the_engine_launches_compiles() -> None:
    """Every launch is one that Triton takes, with its arguments, and fits into shared memory."""
    launches = run("launch_kernels.py")
    assert len(launches) == 7
    assert {name for each in launches.values() for name in each} == {
        "attend_pages",
        "merge_splits",
        "write_rows",
    }
    assert max(size for each in launches.values() for size in each.values()) <= SHARED_MEMORY
