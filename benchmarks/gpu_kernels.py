"""Times the attention kernels on a GPU beside a plain copy, the engine's decode, and a sweep.

Without a CUDA device it prints so and exits with 0. ``--device cpu``, with ``TRITON_INTERPRET=1``,
runs the same code in Triton's interpreter, to try the code: its times are no measurement. README.md
in this folder says how to read the result.
"""

import json
import os
import signal
import sys
from enum import StrEnum
from importlib.util import find_spec
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from inference_worker.model.device import use_threads
from kvstore.logs import configure_logging
from support import machine
from support.gpu.plan import device_facts
from support.kernels.engine_decode import measure_engine
from support.kernels.plan import KernelPlan, make_kernel_plan
from support.kernels.tables import kernel_tables
from support.table_console import table_console

NO_MEASUREMENT = "no measurement: Triton's interpreter on a CPU"


class Part(StrEnum):
    """A part that can be measured by itself."""

    KERNELS = "kernels"
    ENGINE = "engine"
    SWEEP = "sweep"


def measure(plan: KernelPlan, parts: tuple[Part, ...], console: Console) -> dict[str, Any]:
    """Returns everything as one JSON value."""
    before = machine.load_average()
    found: dict[str, Any] = {}
    if Part.KERNELS in parts:
        # Only machines with a GPU have Triton, so it is imported here.
        from support.kernels.times import measure_kernels  # noqa: PLC0415

        console.print("Timing the kernels ...")
        found["kernels"] = measure_kernels(plan.beginning(Part.KERNELS))
    if Part.ENGINE in parts:
        console.print(f"Decoding with random weights, Qwen3's {plan.model} ...")
        found["engine"] = measure_engine(plan.beginning(Part.ENGINE))
    if Part.SWEEP in parts:
        from support.kernels.sweep import sweep_shapes  # noqa: PLC0415

        console.print("Timing other shapes of the kernels ...")
        found["sweep"] = sweep_shapes(plan.beginning(Part.SWEEP))
    return {
        "benchmark": "gpu_kernels",
        **({"note": NO_MEASUREMENT} if plan.device == "cpu" else {}),
        "machine": {**machine.machine_facts(), **device_facts(plan.device)},
        "load_average": {"before": before, "after": machine.load_average()},
        "method": {
            "heads": vars(plan.heads),
            "rounds": plan.rounds,
            "chunk_tokens": plan.chunk_tokens,
            "figure": "the median over the rounds of CUDA events around launches queued ahead",
        },
        **found,
    }


def why_not(device: str, parts: tuple[Part, ...]) -> str | None:
    """Returns the reason why the benchmark cannot measure here, or None."""
    if device != "cpu" and not torch.cuda.is_available():
        return "no CUDA device"
    if parts != (Part.ENGINE,) and find_spec("triton") is None:
        return "no Triton"
    # Triton reads the variable at its import, and torch may import Triton.
    if parts != (Part.ENGINE,) and device == "cpu" and not os.environ.get("TRITON_INTERPRET"):
        return "a CPU runs kernels in Triton's interpreter: set TRITON_INTERPRET=1"
    return None


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
    quick: Annotated[
        bool, typer.Option(help="Use fewer sizes and rounds, and a smaller model.")
    ] = False,
    only: Annotated[Part | None, typer.Option(help="Measure this part only.")] = None,
    device: Annotated[
        str, typer.Option(help="The device: cuda:N, or cpu to try the code.")
    ] = "cuda:0",
) -> None:
    """Times the attention kernels and the engine's decode steps on a GPU."""
    # SIGTERM acts like Ctrl-C, so that the program cleans up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parts = tuple(Part) if only is None else (only,)
    reason = why_not(device, parts)
    if reason is not None:
        skipped = {"benchmark": "gpu_kernels", "skipped": f"skipped: {reason}"}
        sys.stdout.write((json.dumps(skipped) if as_json else skipped["skipped"]) + "\n")
        return
    disable_progress_bar()
    if device == "cpu":
        use_threads(1)
    configure_logging("console", "warning")
    console = Console(stderr=True)
    document = measure(make_kernel_plan(device, quick=quick), parts, console)
    if as_json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return
    shown = table_console()
    if device == "cpu":
        shown.print(NO_MEASUREMENT)
    facts = ", ".join(f"{key} {value}" for key, value in document["machine"].items())
    shown.print(f"{facts}, load average {document['load_average']['before']}", style="dim")
    for table in kernel_tables(document):
        shown.print(table)


if __name__ == "__main__":
    typer.run(main)
