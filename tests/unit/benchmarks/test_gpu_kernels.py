"""The results that gpu_kernels.py makes from its measurements, without a device."""

from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
import torch
from rich.console import Console

from support.kernels.cells import (
    BESIDE_PREFILL,
    ONE_LONG,
    TOY,
    UNIFORM,
    CellStep,
    cells,
    layer_bytes,
)
from support.kernels.device_clock import WallClock, time_queued
from support.kernels.engine_decode import covered
from support.kernels.plan import GIB, make_kernel_plan
from support.kernels.tables import kernel_tables


def test_each_mix_is_measured_once() -> None:
    """Batches of one sequence or of one context have no mix with one long context."""
    found = {(each.mix, each.batch, each.context): each.parts for each in cells((1, 3), (8, 32), 5)}
    assert found == {
        (UNIFORM, 1, 8): ((7, 1),),
        (BESIDE_PREFILL, 1, 8): ((7, 1), (8, 5)),
        (UNIFORM, 1, 32): ((31, 1),),
        (BESIDE_PREFILL, 1, 32): ((31, 1), (32, 5)),
        (UNIFORM, 3, 8): ((7, 1),) * 3,
        (BESIDE_PREFILL, 3, 8): ((7, 1),) * 3 + ((8, 5),),
        (UNIFORM, 3, 32): ((31, 1),) * 3,
        (ONE_LONG, 3, 32): ((31, 1), (7, 1), (7, 1)),
        (BESIDE_PREFILL, 3, 32): ((31, 1),) * 3 + ((32, 5),),
    }


def test_a_step_counts_the_bytes_that_it_moves() -> None:
    """Each key and value is read once, and a written token is read and written."""
    cell = next(cells((2,), (40,), 1))
    step = CellStep(cell, TOY, 2, "cpu")
    row = 2 * 32 * 4  # heads, values, bytes
    assert step.write_bytes == 2 * (2 * 2 * row)
    assert step.attend_bytes == 2 * 80 * row + 2 * 2 * 2 * row
    # Three pages of 16 tokens for each of the two.
    assert layer_bytes(cell, TOY) == 6 * 16 * 2 * row
    assert torch.cat([part.table.slots for part in step.step.parts]).unique().numel() == 6


def test_a_quick_run_fits_a_small_card() -> None:
    """Pages, two copies and the model take less than 24 GiB."""
    plan = make_kernel_plan("cuda:0", quick=True)
    assert plan.page_bytes + 2 * 2 * GIB + 5 * GIB < 24 * GIB


def test_what_does_not_fit_is_left_out() -> None:
    """The row of a case without memory or time has the reason."""
    plan = make_kernel_plan("cpu", quick=True)
    assert plan.left_out(plan.page_bytes) is None
    assert plan.left_out(plan.page_bytes + 1) == "needs 16 MiB, has room for 16 MiB"
    assert plan.beginning("sweep").left_out(0) is None
    assert replace(plan, ends_at=0.0).left_out(0) == "no time was left"


class HeldClock(WallClock):
    """A device whose first holds are too short."""

    def __init__(self, enough: float) -> None:
        self.held: list[float] = []
        self._enough = enough

    def hold(self, seconds: float) -> Callable[[], bool]:
        """Records the hold."""
        self.held.append(seconds)
        return lambda: seconds >= self._enough


def test_a_hold_that_was_too_short_is_tried_again() -> None:
    """Each attempt is twice as long, and the number of attempts is bounded."""
    done: list[int] = []
    clock = HeldClock(enough=10.0)
    timed = time_queued(clock, lambda: done.append(1), 1.0)
    assert (timed.queued, timed.attempts, len(done)) == (True, len(clock.held), len(clock.held))
    assert clock.held == [first * 2**n for n, first in enumerate([clock.held[0]] * len(done))]
    timed = time_queued(HeldClock(enough=float("inf")), lambda: None, 1.0)
    assert (timed.queued, timed.attempts) == (False, 4)


def test_busy_time_is_counted_once() -> None:
    """The overlap of kernels on two streams counts once."""
    assert covered([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (1.5, 2.5)]) == 4.0
    assert covered([]) == 0.0


ROW: dict[str, Any] = {
    "mix": UNIFORM,
    "batch": 8,
    "context": 32_768,
    "us": {"write": 3.0, "attend": 250.0},
    "layer_us": 260.0,
    "host_us": {"first layer": 900.0, "layer": 80.0},
    "gb_s": {"write": 20.0, "attend": 4000.0},
    "copy_gb_s": 4400.0,
    "share_of_copy": {"write": 0.1, "attend": 0.91},
    "queued": True,
}
LEFT_OUT = {"mix": UNIFORM, "batch": 64, "context": 131_072, "left_out": "needs 34,359 MiB"}
DECODE = {"batch": 8, "context": 1024, "tokens_s": 512.0, "step_ms": 15.6}
SHAPE = {"batch": 8, "context": 8192, "programs": 4, "warps": 8, "stages": 3, "keys": 64}


def test_tables_have_what_was_measured() -> None:
    """A cell that was left out has its reason, and the fastest shape comes first."""
    document = {
        "kernels": [ROW, LEFT_OUT, {**ROW, "queued": False}],
        "engine": [
            {**DECODE, "gpu_busy_ms": 5.0, "gpu_busy_share": 0.32},
            {**DECODE, "gpu_busy_ms": None, "gpu_busy_share": None},
            {"batch": 32, "context": 1024, "left_out": "no time was left"},
        ],
        "sweep": [
            {**SHAPE, "keys": 128, "left_out": "out of resource: shared memory"},
            {**SHAPE, "us": {"attend": 90.0}, "layer_us": 95.0, "gb_s": 3000.0, "queued": True},
            {**SHAPE, "programs": 6, **FAST},
        ],
    }
    out = StringIO()
    for table in kernel_tables(document):
        Console(file=out, width=200).print(table)
    text = out.getvalue()
    assert "260.0?" in text
    assert "91%" in text
    assert "needs 34,359 MiB" in text
    assert "32%" in text
    assert "no time was left" in text
    assert text.index("85.0") < text.index("95.0") < text.index("out of resource")


FAST = {"us": {"attend": 70.0, "merge": 9.0}, "layer_us": 85.0, "gb_s": 3800.0, "queued": True}


@pytest.mark.parametrize("quick", [True, False])
def test_a_cpu_tries_every_part(*, quick: bool) -> None:
    """A CPU runs every part with sizes of its own, quick or not."""
    plan = make_kernel_plan("cpu", quick=quick)
    assert plan.room() == plan.page_bytes
    assert plan.sweep_cells
