"""The time of a decode's kernels by how they are cut and compiled. Needs Triton."""

from functools import partial
from itertools import product
from typing import Any

from triton.runtime.errors import OutOfResources

from inference_worker.kernel_attention import KernelAttention
from inference_worker.kernel_shape import KernelShape, LaunchShape, padded_dims
from support.kernel_cells import UNIFORM, Cell, CellStep, layer_bytes
from support.kernel_plan import KernelPlan
from support.kernel_times import MICROSECONDS, time_layers


def sweep_shapes(plan: KernelPlan) -> list[dict[str, Any]]:
    """Return a row for each cell and shape: microseconds a layer, or why it cannot run."""
    rows = []
    for batch, context in plan.sweep_cells:
        cell = Cell(UNIFORM, batch, context, ((context - 1, 1),) * batch)
        layers = max(1, min(plan.most_layers, plan.room() // layer_bytes(cell, plan.heads)))
        step = CellStep(cell, plan.heads, layers, plan.device)
        shapes = product(plan.sweep_programs, plan.sweep_stages, plan.sweep_keys)
        rows += [_row(plan, cell, step, *shape) for shape in shapes]
    return rows


def _row(
    plan: KernelPlan, cell: Cell, step: CellStep, programs: int, stages: int, keys: int
) -> dict[str, Any]:
    row: dict[str, Any] = {"batch": cell.batch, "context": cell.context}
    row |= {"programs": programs, "stages": stages, "keys": keys}
    head_bytes = padded_dims(plan.heads.head_dim) * step.pool.dtype.itemsize
    decode = LaunchShape(programs=programs, keys=keys, keys_bytes=keys * head_bytes, stages=stages)
    shape = KernelShape(decode=decode)
    how = partial(KernelAttention, programs=plan.programs, shape=shape)
    try:
        timing = time_layers(plan, step, how)
    except OutOfResources as error:
        return {**row, "left_out": str(error)}
    return {
        **row,
        "layer_us": timing.layer * MICROSECONDS,
        "us": {name: seconds * MICROSECONDS for name, seconds in timing.kernels.items()},
        "gb_s": step.attend_bytes / timing.kernels["attend"] / 1e9,
        "queued": timing.queued,
    }
