"""The sizes that gpu_kernels.py measures, on a GPU and, to try its code, on a CPU."""

import math
import time
from dataclasses import dataclass, replace
from typing import Self

import torch

from support.kernels.cells import QWEN3_8B, TOY, Heads

GIB = 1 << 30
# The part of a device's free memory that pages do not use.
SLACK = 0.35
# Seconds after which a part starts no new measurement, quick and in full: a run on a GPU machine
# has minutes, and a part that is killed has no result.
PART_SECONDS = {"kernels": (45.0, 120.0), "engine": (25.0, 55.0), "sweep": (35.0, 90.0)}


@dataclass(frozen=True, kw_only=True)
class KernelPlan:
    """The sizes to measure, in tokens and in bytes, and the number of rounds.

    ``layers_at_once`` layers are launched together and timed as one, so that their launches fit
    into a device's launch queue of about 1,000 entries. ``programs`` is that of
    ``KernelAttention``. No measurement starts once ``time.monotonic()`` is past ``ends_at``.
    """

    device: str
    quick: bool
    heads: Heads
    programs: int | None
    layers_at_once: int
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    chunk_tokens: int
    page_bytes: int
    most_layers: int
    rounds: int
    sweep_cells: tuple[tuple[int, int], ...]
    sweep_programs: tuple[int, ...]
    sweep_stages: tuple[int, ...]
    sweep_keys: tuple[int, ...]
    sweep_warps: tuple[int, ...]
    model: str
    engine_batches: tuple[int, ...]
    engine_context: int
    engine_steps: int
    profiled_steps: int
    ends_at: float = math.inf

    def beginning(self, part: str) -> Self:
        """Returns the same plan for one part, which begins now."""
        quick, whole = PART_SECONDS[part]
        return replace(self, ends_at=time.monotonic() + (quick if self.quick else whole))

    def left_out(self, needed: int) -> str | None:
        """Returns why ``needed`` bytes of pages are not measured, or None."""
        if time.monotonic() > self.ends_at:
            return "no time was left"
        if needed > self.room():
            return f"needs {needed >> 20:,} MiB, has room for {self.room() >> 20:,} MiB"
        return None

    def room(self) -> int:
        """Returns how many bytes the pages of one cell may use now."""
        if self.device == "cpu":
            return self.page_bytes
        torch.cuda.empty_cache()
        available, _ = torch.cuda.mem_get_info(self.device)
        return min(self.page_bytes, int(available * (1 - SLACK)))


def make_kernel_plan(device: str, *, quick: bool) -> KernelPlan:
    """Chooses sizes for a device; a quick run takes at most 24 GiB of its memory."""
    if device == "cpu":
        return KernelPlan(
            device=device,
            quick=quick,
            heads=TOY,
            programs=64,
            layers_at_once=1,
            batches=(1, 2),
            contexts=(40, 600),
            chunk_tokens=20,
            page_bytes=16 << 20,
            most_layers=2,
            rounds=1,
            sweep_cells=((2, 600),),
            sweep_programs=(2, 4),
            sweep_stages=(2, 3),
            sweep_keys=(32,),
            sweep_warps=(4,),
            model="tiny",
            engine_batches=(1, 3),
            engine_context=64,
            engine_steps=4,
            profiled_steps=1,
        )
    return KernelPlan(
        device=device,
        quick=quick,
        heads=QWEN3_8B,
        programs=None,
        layers_at_once=36,
        batches=(1, 8, 64),
        contexts=(1024, 32_768) if quick else (1024, 8192, 32_768, 131_072),
        chunk_tokens=512,
        page_bytes=(9 if quick else 48) * GIB,
        most_layers=36,
        rounds=3 if quick else 7,
        sweep_cells=((8, 8192),) if quick else ((1, 32_768), (8, 8192), (64, 1024)),
        sweep_programs=(2, 4, 6),
        sweep_stages=(2, 3, 4),
        sweep_keys=(32, 64, 128),
        sweep_warps=(8,) if quick else (8, 4),
        model="1.7b" if quick else "8b",
        engine_batches=(1, 8) if quick else (1, 8, 32),
        engine_context=1024,
        engine_steps=16 if quick else 64,
        # The profiler needs a second for about 10,000 kernels, about eight steps.
        profiled_steps=4 if quick else 8,
    )
