"""The reference engine's decode speed, and the share of the time in which its device works."""

import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from torch.profiler import ProfilerActivity, profile

from inference_worker.engine.engine import Engine
from inference_worker.engine.request import Request, RequestOutcome
from inference_worker.model.model import PagedModel, page_model
from support.gpu.models import build_model
from support.gpu.plan import PAGE_TOKENS, synchronize
from support.kernels.plan import KernelPlan

# Untimed steps at the start, in which kernels are compiled and loaded.
WARM_STEPS = 3


def measure_engine(plan: KernelPlan) -> list[dict[str, Any]]:
    """Returns a row for each batch: tokens a second, and the share of GPU-busy time.

    The engine runs on its own pages, without a store. The share is the GPU's time of a step by
    torch's profiler, over the time of a step without the profiler. It is None if the profiler sees
    no kernel, as on a CPU.
    """
    digest = (f"{plan.model} decode".encode().hex() + "0" * 64)[:64]
    if plan.left_out(0) is not None:
        return [_left_out(plan, batch) for batch in plan.engine_batches]
    model = page_model(build_model(plan.model, plan.device), digest=digest)
    return [_row(plan, model, batch) for batch in plan.engine_batches]


def _row(plan: KernelPlan, model: PagedModel, batch: int) -> dict[str, Any]:
    if plan.left_out(0) is not None:
        return _left_out(plan, batch)
    steps = WARM_STEPS + plan.engine_steps + plan.profiled_steps
    longest = plan.engine_context + steps + 1
    room = -(-longest // PAGE_TOKENS) * PAGE_TOKENS * batch
    engine = Engine(
        model,
        None,
        page_tokens=PAGE_TOKENS,
        longest=longest,
        max_running=batch,
        private_tokens=room,
    )
    decodes = _Decodes(engine, plan, batch, steps + 1)
    decodes.prefill()
    decodes.run(WARM_STEPS)
    synchronize(plan.device)
    begin = time.perf_counter()
    tokens = decodes.run(plan.engine_steps)
    synchronize(plan.device)
    seconds = time.perf_counter() - begin
    busy = _busy_seconds(plan.device, partial(decodes.run, plan.profiled_steps))
    step, busy_step = seconds / plan.engine_steps, busy and busy / plan.profiled_steps
    return {
        "batch": batch,
        "context": plan.engine_context,
        "tokens_s": tokens / seconds,
        "step_ms": step * 1e3,
        "gpu_busy_ms": busy_step and busy_step * 1e3,
        "gpu_busy_share": busy_step and busy_step / step,
    }


def _left_out(plan: KernelPlan, batch: int) -> dict[str, Any]:
    return {"batch": batch, "context": plan.engine_context, "left_out": plan.left_out(0)}


class _Decodes:
    """As many requests as a batch has, all of which decode after ``prefill``."""

    def __init__(self, engine: Engine, plan: KernelPlan, batch: int, max_tokens: int) -> None:
        self._engine = engine
        self._counts = [0] * batch
        for number in range(batch):
            # Each has its own prompt, of ids that every model here has.
            ids = [(number * 31 + each * 7) % 250 for each in range(plan.engine_context)]
            engine.add(
                Request(prompt_ids=ids, max_tokens=max_tokens),
                RequestOutcome(partial(self._count, number)),
                use_store=False,
            )

    def _count(self, number: int, token: int) -> None:
        del token
        self._counts[number] += 1

    def prefill(self) -> None:
        """Runs steps until every request has its first token."""
        while not all(self._counts):
            self._engine.step()

    def run(self, steps: int) -> int:
        """Runs steps; returns the number of new tokens."""
        before = sum(self._counts)
        for _ in range(steps):
            self._engine.step()
        return sum(self._counts) - before


def _busy_seconds(device: str, work: Any) -> float | None:  # noqa: ANN401  # any callable
    """Returns how long the device worked, or None if the profiler sees none of its work."""
    if device == "cpu":
        work()
        return None
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        work()
        synchronize(device)
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in profiled.events() or ()
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    ]
    return covered(spans) / 1e6 if spans else None


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Returns how much of a line is covered by spans, which may overlap."""
    total, end = 0.0, float("-inf")
    for begin, behind in sorted(spans):
        total += max(0.0, behind - max(begin, end))
        end = max(end, behind)
    return total
