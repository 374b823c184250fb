"""Compiles the engine's launches for other GPUs, and reports the registers and memory of each.

python tests/support/device/compiled_kernels.py [--json] [CAPABILITY ...]

Needs Triton 3.6 or later and no GPU. It runs ``KernelAttention`` on tensors of the CPU, up to the
point where a GPU would run the launches, so this file names no kernel's arguments. ``cuobjdump``,
from Triton's wheel, reads registers and local memory out of the machine code. Prints a table of the
launches of a large model for each compute capability, or one JSON list of all launches.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

# This folder comes first on the path of a program; its packages are one above.
sys.path[0] = str(Path(__file__).parents[1])

from device.kernel_cases import CASES, Case, attend  # noqa: E402
from device.occupancy import PROCESSORS, programs_a_processor  # noqa: E402
from inference_worker.attention.kernel_attention import KernelAttention  # noqa: E402

# Number of programs, so that decodes are split as on a GPU: two for each processor of an H200.
PROGRAMS = 264
# 32 heads on 8, of 128 values each, as Qwen3-8B and Llama 3.1 8B have them.
LARGE = {
    "decode": Case(16, 8, 4, 128, [(4000, 1)]),
    "prefill": Case(16, 8, 4, 128, [(1000, 512)]),
    "decode beside prefill": Case(16, 8, 4, 128, [(4000, 1), (0, 512)]),
}
# Every variant of a kernel: softcap, window, sinks, pages of one token, and wide heads.
SMALL = {
    **{name: CASES[name] for name in ("pages of one token", "sinks")},
    "a window and a softcap": CASES["pages of seven, a window and a softcap"],
    "decode, heads of 256": Case(16, 1, 4, 256, [(1200, 1)]),
    "prefill, heads of 256": Case(16, 1, 4, 256, [(600, 40)]),
}
DTYPES = ("bfloat16", "float32")
OBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
USED = re.compile(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)")
INSTRUCTION = re.compile(
    r"\b(ld\.global(?:\.\w+)*|st\.global(?:\.\w+)*|cp\.async\.c[ag]|wgmma\.mma_async"
    r"|mma\.sync|tcgen05\.mma)"
)
# Only asynchronous copies fill memory that is first allocated and later written.
BUFFER = re.compile(r"ttg\.local_alloc\s*:\s*\(\)\s*->\s*!ttg\.memdesc<((?:\d+x)+)[a-z]+(\d+)")


class Launch(NamedTuple):
    """One kernel as it is launched in one step; sizes in bytes."""

    capability: int
    case: str
    dtype: str
    kernel: str
    warps: int
    registers: int
    # Local memory of a thread, used for registers that are spilled.
    local: int
    shared: int
    # The memory that a program's asynchronous copies fill: the most that they have in flight.
    buffers: int
    instructions: dict[str, int]

    @property
    def programs(self) -> int:
        """Programs that one multiprocessor runs at a time."""
        return programs_a_processor(
            self.capability, registers=self.registers, shared=self.shared, warps=self.warps
        )


class NoDevice:
    """Answers Triton's questions before a launch; a device's number is its capability."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_device(self) -> int:
        """Returns a different number for each capability, since Triton caches kernels by it."""
        return self._capability

    def get_current_stream(self, device: int) -> int:
        """Returns the default one."""
        del device
        return 0

    def get_current_target(self) -> GPUTarget:
        """Returns the target to compile for."""
        return GPUTarget("cuda", self._capability, 32)


def launches(capability: int, cases: dict[str, Case]) -> list[Launch]:
    """Returns the launches of ``cases``' steps, in order, in each dtype that has kernels."""
    found: list[Launch] = []
    launch = JITFunction.run
    driver.set_active(NoDevice(capability))
    for name, case in cases.items():
        # A head of 40 bytes is gathered, since kernels move units of 16.
        for dtype in DTYPES if case.head_dim % 8 == 0 else ("float32",):

            def compile_only(
                kernel: Any,  # noqa: ANN401 - Triton's
                *args: Any,  # noqa: ANN401
                warmup: bool,
                name: str = name,
                dtype: str = dtype,
                **named: Any,  # noqa: ANN401
            ) -> None:
                del warmup
                made = launch(kernel, *args, warmup=True, **named)
                found.append(_measured(made, capability, name, dtype, kernel.__name__))

            with patch.object(JITFunction, "run", compile_only):
                attend(case._replace(dtype=dtype), partial(KernelAttention, programs=PROGRAMS))
    return found


def _measured(made: Any, capability: int, case: str, dtype: str, kernel: str) -> Launch:  # noqa: ANN401 - Triton's
    with tempfile.NamedTemporaryFile(suffix=".cubin") as code:
        code.write(made.asm["cubin"])
        code.flush()
        said = subprocess.run(
            [OBJDUMP, "--dump-resource-usage", code.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    (used,) = USED.findall(said)
    registers, stack, local = map(int, used)
    buffers = (
        prod(map(int, shape[:-1].split("x"))) * int(bits) // 8
        for shape, bits in BUFFER.findall(made.asm["ttgir"])
    )
    return Launch(
        capability,
        case,
        dtype,
        kernel,
        made.metadata.num_warps,
        registers,
        stack + local,
        made.metadata.shared,
        sum(buffers),
        Counter(INSTRUCTION.findall(made.asm["ptx"])),
    )


HEAD = (
    "| target | step | launch | dtype | warps | registers | spilled B | shared B "
    "| programs an SM | KiB in flight an SM |"
)


def table(found: list[Launch]) -> str:
    """Returns a row for each launch of the large model, once for steps with the same code."""
    lines = [HEAD, "| --- | --- | --- | --- |" + " ---: |" * 6]
    seen = set()
    for each in found:
        code = (*each[:1], *each[2:-1], *sorted(each.instructions.items()))
        if each.case in LARGE and code not in seen:
            seen.add(code)
            flying = f"{each.programs * each.buffers / 1024:.0f}" if each.buffers else "-"
            lines.append(
                f"| sm_{each.capability} | {each.case} | {each.kernel} | {each.dtype} "
                f"| {each.warps} | {each.registers} | {each.local} | {each.shared} "
                f"| {each.programs} | {flying} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Prints the table, or all launches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("capability", nargs="*", type=int, default=list(PROCESSORS))
    given = parser.parse_args()
    if given.json:
        every = {**LARGE, **SMALL}
        found = [each for one in given.capability for each in launches(one, every)]
        json.dump([each._asdict() for each in found], sys.stdout)
    else:
        found = [each for one in given.capability for each in launches(one, LARGE)]
        sys.stdout.write(table(found) + "\n")


if __name__ == "__main__":
    main()
