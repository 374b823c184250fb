"""Compile what an engine launches, for a Hopper GPU without one, and print what each needs.

Run as a program: one JSON object of bytes of shared memory, by case and kernel. The launches are
those of ``KernelAttention`` on tensors of the CPU, up to the point where a GPU would run them.
"""

import json
import sys
from functools import partial
from typing import Any

from kernel_cases import CASES, Case, attend
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from inference_worker.kernel_attention import KernelAttention

# Enough of everything: softcap, window, sinks, splits, pages of one token, and heads of 256.
CHOSEN = ("pages of one token", "pages of seven, a window and a softcap", "sinks")
WIDE = Case(16, 1, 4, 256, [(600, 40)])
PROGRAMS = 264


class Hopper:
    """What Triton asks of a driver before a launch."""

    def get_current_device(self) -> int:
        """Return the first one."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Return the default one."""
        del device
        return 0

    def get_current_target(self) -> GPUTarget:
        """Return what is compiled for."""
        return GPUTarget("cuda", 90, 32)


def main() -> None:
    """Print what was found."""
    found: dict[str, dict[str, int]] = {}
    launch = JITFunction.run

    def compile_only(name: str, kernel: Any, *args: Any, warmup: bool, **named: Any) -> None:  # noqa: ANN401 - Triton's
        del warmup
        made = launch(kernel, *args, warmup=True, **named)
        found.setdefault(name, {})[kernel.__name__] = made.metadata.shared

    driver.set_active(Hopper())
    cases = {**{name: CASES[name] for name in CHOSEN}, "heads of 256": WIDE}
    for name, case in cases.items():
        for dtype in ("float32",) if case.head_dim % 8 else ("float32", "bfloat16"):
            run = partial(compile_only, f"{name}, {dtype}")
            # A function, which binds to the kernel that it is called on.
            JITFunction.run = lambda *args, run=run, **named: run(*args, **named)
            attend(case._replace(dtype=dtype), partial(KernelAttention, programs=PROGRAMS))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
