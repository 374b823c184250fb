"""The time of each attention kernel, beside a plain copy on the device. Needs Triton."""

import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from statistics import median
from typing import Any

import torch

from inference_worker.attention import kernels as page_kernels
from inference_worker.attention.attention import StepAttention
from inference_worker.attention.kernel_attention import KernelAttention
from inference_worker.attention.step import Step
from support.kernels.cells import Cell, CellStep, cells, layer_bytes
from support.kernels.device_clock import Clock, device_clock, marked_launches, time_queued
from support.kernels.plan import KernelPlan

NAMES = {"write_rows": "write", "attend_pages": "attend", "merge_splits": "merge"}
# The inputs of a merge, by the names of its kernel's parameters.
PARTIALS = ("sums", "peaks")
MICROSECONDS = 1e6

Attend = Callable[[Step], StepAttention]


def measure_kernels(plan: KernelPlan) -> list[dict[str, Any]]:
    """Returns a row for each cell, with the reason alone where it does not fit."""
    copy = PlainCopy(plan.device, device_clock(plan.device))
    return [
        measure_cell(plan, cell, copy)
        for cell in cells(plan.batches, plan.contexts, plan.chunk_tokens)
    ]


def measure_cell(plan: KernelPlan, cell: Cell, copy: "PlainCopy") -> dict[str, Any]:
    """Returns microseconds of a layer and of its kernels, bytes, GB/s and shares of a copy."""
    row: dict[str, Any] = {"mix": cell.mix, "batch": cell.batch, "context": cell.context}
    reason = plan.left_out(layer_bytes(cell, plan.heads))
    if reason is not None:
        return {**row, "left_out": reason}
    step = make_step(plan, cell)
    timing = time_layers(plan, step, partial(KernelAttention, programs=plan.programs))
    moved = {"write": step.write_bytes, "attend": step.attend_bytes, "merge": timing.merge_bytes}
    rates = {
        name: moved[name] / timing.kernels[name] / 1e9 for name in moved if timing.kernels.get(name)
    }
    copied = copy.rate(step.attend_bytes // 2)
    return {
        **row,
        "layers": step.layer_count,
        "bytes": moved,
        "us": {name: seconds * MICROSECONDS for name, seconds in timing.kernels.items()},
        "layer_us": timing.layer * MICROSECONDS,
        "host_us": {
            "first layer": timing.host_first * MICROSECONDS,
            "layer": timing.host * MICROSECONDS,
        },
        "gb_s": rates,
        "copy_gb_s": copied / 1e9,
        "share_of_copy": {name: rate * 1e9 / copied for name, rate in rates.items()},
        "queued": timing.queued,
    }


def make_step(plan: KernelPlan, cell: Cell) -> CellStep:
    """Returns a cell's step, with pages of as many layers as there is room for."""
    layers = max(1, min(plan.most_layers, plan.room() // layer_bytes(cell, plan.heads)))
    return CellStep(cell, plan.heads, layers, plan.device)


class LayerTiming:
    """Seconds a layer: medians over the rounds. ``kernels`` are by their work."""

    def __init__(self) -> None:
        self.kernels: dict[str, float] = {}
        self.layer = 0.0
        self.host = 0.0
        self.host_first = 0.0
        self.merge_bytes = 0
        self.queued = True


def time_layers(plan: KernelPlan, step: CellStep, how: Attend) -> LayerTiming:
    """Times consecutive layers of a step whose tables are on the device."""
    clock, count = device_clock(plan.device), plan.layers_at_once
    found = LayerTiming()
    _attend(how(step.step), step, step.layer_count)
    clock.synchronize()

    begin = time.perf_counter()
    attention = how(step.step)
    _attend(attention, step, 1)
    found.host_first = time.perf_counter() - begin
    begin = time.perf_counter()
    _attend(attention, step, count)
    found.host = (time.perf_counter() - begin) / count

    def work() -> None:
        _attend(attention, step, count)

    whole, kernels = [], []
    for _ in range(plan.rounds):
        timed = time_queued(clock, work, found.host * count)
        whole.append(timed.seconds / count)
        found.queued &= timed.queued
        seconds: defaultdict[str, float] = defaultdict(float)
        with marked_launches(clock, page_kernels.write_rows) as launches:
            # Twice: marks are three quarters of the queue's entries.
            timed = time_queued(clock, work, 2 * found.host * count)
        found.queued &= timed.queued
        # An attempt in which the device ran out of work does not count.
        launches = launches[-(len(launches) // timed.attempts) :]
        for launch in launches:
            name = NAMES.get(launch.kernel, launch.kernel)
            seconds[name] += clock.seconds(launch.begin, launch.end) / count
            if name == "merge":
                found.merge_bytes = sum(launch.sizes[each] for each in PARTIALS)
        kernels.append(seconds)
    found.layer = median(whole)
    found.kernels = {name: median(each[name] for each in kernels) for name in kernels[0]}
    return found


def _attend(attention: StepAttention, step: CellStep, count: int) -> None:
    query, key, value = step.inputs
    for layer in islice(cycle(range(step.layer_count)), count):
        attention.attend(layer, query, key, value, step.terms)


class PlainCopy:
    """Copies on the device, for comparison: ``torch.empty_like(x).copy_(x)``."""

    # Larger than a device's cache, so that no copy finds the last one's bytes there.
    SPREAD_BYTES = 512 << 20
    MOST_BYTES = 2 << 30
    COPIES = 16

    def __init__(self, device: str, clock: Clock) -> None:
        self._device = device
        self._clock = clock
        self._rates: dict[int, float] = {}

    def rate(self, byte_count: int) -> float:
        """Returns bytes a second, read and written, of copies of so many bytes, at most 2 GiB."""
        size = min(byte_count, self.MOST_BYTES)
        if size not in self._rates:
            self._rates[size] = 2 * size / self._seconds(size)
        return self._rates[size]

    def _seconds(self, size: int) -> float:
        spread = self.SPREAD_BYTES if self._device != "cpu" else 0
        count = max(1, min(spread // size, 256))
        source = torch.zeros((count, size), dtype=torch.uint8, device=self._device)
        target = torch.empty_like(source)

        def copy() -> None:
            for number in islice(cycle(range(count)), self.COPIES):
                target[number].copy_(source[number])

        copy()
        return min(time_queued(self._clock, copy, 1e-3).seconds / self.COPIES for _ in range(3))
