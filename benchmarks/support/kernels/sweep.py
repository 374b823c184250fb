"""The time of a decode's kernels by tile sizes and compile options. Needs Triton."""

from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from triton.runtime.errors import OutOfResources

from inference_worker.attention.kernel_attention import KernelAttention
from inference_worker.attention.kernel_shape import KernelShape, padded_dims
from support.kernels.cells import UNIFORM, Cell, CellStep, layer_bytes
from support.kernels.plan import KernelPlan
from support.kernels.times import MICROSECONDS, make_step, time_layers


@dataclass(frozen=True)
class Shape:
    """Programs a multiprocessor, and the warps, pipeline stages and keys of each."""

    programs: int
    warps: int
    stages: int
    keys: int


def sweep_shapes(plan: KernelPlan) -> list[dict[str, Any]]:
    """Returns a row for each cell and shape: microseconds a layer, or why it was left out."""
    rows = []
    for batch, context in plan.sweep_cells:
        cell = Cell(UNIFORM, batch, context, ((context - 1, 1),) * batch)
        step = None
        # Programs change fastest: they need no new compilation.
        for warps, stages, keys, programs in product(
            plan.sweep_warps, plan.sweep_stages, plan.sweep_keys, plan.sweep_programs
        ):
            shape = Shape(programs, warps, stages, keys)
            row = {"batch": batch, "context": context, **asdict(shape)}
            reason = plan.left_out(0 if step else layer_bytes(cell, plan.heads))
            if reason is None:
                step = step or make_step(plan, cell)
                row |= _figures(plan, step, shape)
            else:
                row["left_out"] = reason
            rows.append(row)
    return rows


def _figures(plan: KernelPlan, step: CellStep, shape: Shape) -> dict[str, Any]:
    head_bytes = padded_dims(plan.heads.head_dim) * step.pool.dtype.itemsize
    default = KernelShape()
    decode = replace(
        default.decode,
        programs=shape.programs,
        least_warps=shape.warps,
        keys=shape.keys,
        keys_bytes=shape.keys * head_bytes,
        stages=shape.stages,
    )
    chosen = replace(default, decode=decode)
    how = partial(KernelAttention, programs=plan.programs, shape=chosen)
    try:
        timing = time_layers(plan, step, how)
    except OutOfResources as error:
        return {"left_out": str(error)}
    return {
        "layer_us": timing.layer * MICROSECONDS,
        "us": {name: seconds * MICROSECONDS for name, seconds in timing.kernels.items()},
        "gb_s": step.attend_bytes / timing.kernels["attend"] / 1e9,
        "queued": timing.queued,
    }
