"""The engine's launches, compiled for other GPUs: registers, memory, instructions.

The layout of launches in ``inference_worker`` relies on the numbers asserted here.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from device.compiled_kernels import Launch, table
from device.occupancy import PROCESSORS, programs_a_processor
from inference_worker.attention.kernel_shape import KernelShape

PROGRAM = Path(__file__).parents[1] / "support" / "device" / "compiled_kernels.py"
TARGETS = sorted(PROCESSORS)
# The first test waits for all compilations: a minute of one core.
pytestmark = pytest.mark.timeout(1200)
# Four programs of four warps have the registers of one multiprocessor to themselves.
DECODE_REGISTERS = 128
# The tensor core instruction of a prefill on each generation.
TENSOR_CORES = {80: "mma.sync", 89: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}


@pytest.fixture(scope="module")
def found() -> list[Launch]:
    """Every launch, from a process whose Triton compiles instead of interpreting."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(PROGRAM), "--json"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return [Launch(**each) for each in json.loads(result.stdout)]


def launches(found: list[Launch], capability: int, case: str) -> list[Launch]:
    """Returns the launches of one step on 16-bit pages."""
    chosen = [
        each
        for each in found
        if (each.capability, each.case, each.dtype) == (capability, case, "bfloat16")
    ]
    assert chosen
    return chosen


def multiplying(found: list[Launch], capability: int, case: str) -> list[Launch]:
    """Returns the launches of one step that multiply on tensor cores."""
    chosen = [
        each
        for each in launches(found, capability, case)
        if {*TENSOR_CORES.values()} & each.instructions.keys()
    ]
    assert chosen
    return chosen


def test_the_table(found: list[Launch], record_property: Callable[[str, object], None]) -> None:
    """Each launch of the large model on each target is in the table that the run prints."""
    made = table(found)
    rows = {tuple(row.strip("| ").split(" | ")) for row in made.splitlines()[2:]}
    assert {(target, kernel, dtype) for target, _, kernel, dtype, *_ in rows} == {
        (f"sm_{each.capability}", each.kernel, each.dtype) for each in found
    }
    assert {target for target, *_ in rows} == {f"sm_{capability}" for capability in TARGETS}
    assert {step for _, step, *_ in rows} >= {"decode", "prefill"}
    record_property("summary", made)


@pytest.mark.parametrize("capability", TARGETS)
def test_every_launch_fits(found: list[Launch], capability: int) -> None:
    """At least one program of every kernel runs on a multiprocessor of each target."""
    of_target = [each for each in found if each.capability == capability]
    assert of_target
    assert [each for each in of_target if each.programs == 0] == []


@pytest.mark.parametrize("capability", TARGETS)
def test_a_decode_spills_nothing(found: list[Launch], capability: int) -> None:
    """Each kernel of a decode keeps everything in registers, and leaves some for others."""
    for each in launches(found, capability, "decode"):
        assert (each.local, each.registers <= DECODE_REGISTERS) == (0, True), each


@pytest.mark.parametrize("case", ["decode", "prefill"])
def test_a_processor_has_room_for_what_is_planned(found: list[Launch], case: str) -> None:
    """The engine plans no more programs a multiprocessor of an H200 than fit there."""
    planned = getattr(KernelShape(), case).programs
    for each in launches(found, 90, case):
        assert each.programs >= planned, each


@pytest.mark.parametrize("capability", TARGETS)
@pytest.mark.parametrize("case", ["prefill", "decode"])
def test_pages_are_read_16_bytes_at_a_time(found: list[Launch], capability: int, case: str) -> None:
    """Keys and values reach shared memory in asynchronous copies of 16 bytes, ahead of use."""
    # In PTX that is ``cg``, which needs addresses known to be multiples of 16 bytes.
    for each in multiplying(found, capability, case):
        assert each.instructions["cp.async.cg"] >= 16
        assert each.buffers > 0
        assert not {name for name in each.instructions if name.startswith("ld.global.b16")}


@pytest.mark.parametrize("capability", TARGETS)
def test_tiles_are_multiplied_by_tensor_cores(found: list[Launch], capability: int) -> None:
    """A prefill uses each target's own instructions, a decode of few rows the oldest ones."""
    (prefill,) = multiplying(found, capability, "prefill")
    assert TENSOR_CORES[capability] in prefill.instructions
    (decode,) = multiplying(found, capability, "decode")
    assert "mma.sync" in decode.instructions


@pytest.mark.parametrize("capability", TARGETS)
def test_pages_are_written_16_bytes_at_a_time(found: list[Launch], capability: int) -> None:
    """The kernel that writes a token uses vector stores only."""
    first, *_ = launches(found, capability, "decode")
    stores = {name for name in first.instructions if name.startswith("st.global")}
    assert stores == {"st.global.v4.b32"}


@pytest.mark.parametrize(
    ("capability", "registers", "shared", "warps", "programs"),
    [
        (80, 255, 0, 8, 1),
        (80, 32, 1024, 1, 32),
        (80, 128, 39_936, 4, 4),
        (89, 80, 22_016, 4, 4),
        (89, 32, 0, 4, 12),
        (89, 32, 101_377, 4, 0),
        (90, 146, 39_936, 4, 3),
        (90, 168, 99_328, 8, 1),
        (90, 16, 0, 1, 32),
        (100, 64, 113_664, 8, 2),
        (100, 256, 0, 4, 0),
    ],
)
def test_occupancy_is_cuda_s(
    capability: int, registers: int, shared: int, warps: int, programs: int
) -> None:
    """Registers, shared memory, warps and the number of programs each set a limit."""
    assert (
        programs_a_processor(capability, registers=registers, shared=shared, warps=warps)
        == programs
    )
