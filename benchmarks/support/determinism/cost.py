"""The cost of the deterministic mode, and the gain of a second thread."""

import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import torch

from support.determinism.rig import STEP_TOKENS, DeterminismRig

Work = Callable[[DeterminismRig], object]

THREADS: Final = (1, 2)


def work_of(context: int, texts: int) -> dict[str, Work]:
    """Names the timed work: a prompt, and steps of decodes after it."""

    def decodes(count: int) -> Work:
        parts = [(text, context, context + 1) for text in range(count)]
        return lambda rig: rig.compute(parts)

    cuts = range(STEP_TOKENS, context, STEP_TOKENS)
    counts = [count for count in (1, 8, 32) if count <= texts]
    return {
        f"a prompt of {context}": lambda rig: rig.prefill(0, context, cuts),
        **{f"a step of {count} decodes": decodes(count) for count in counts},
    }


def cost_ratios(
    plain: DeterminismRig, exact: DeterminismRig, work: dict[str, Work], rounds: int
) -> dict[str, Any]:
    """Times each kind of work in both modes, in turns: CPU seconds, ratios within each round."""
    found: dict[str, Any] = {}
    for name, each in work.items():
        pairs = [(_cpu(each, plain), _cpu(each, exact)) for _ in range(rounds + 1)][1:]
        found[name] = {
            "ratio": round(statistics.median(exact_ / plain_ for plain_, exact_ in pairs), 2),
            "plain_ms": [round(pair[0] * 1e3, 2) for pair in pairs],
            "deterministic_ms": [round(pair[1] * 1e3, 2) for pair in pairs],
        }
    return found


def thread_ratios(rig: DeterminismRig, work: dict[str, Work], rounds: int) -> dict[str, Any]:
    """Times each kind of work with one thread and with two, in turns, in wall-clock seconds."""
    before = torch.get_num_threads()
    found: dict[str, Any] = {}
    try:
        for name, each in work.items():
            times: dict[int, list[float]] = {count: [] for count in THREADS}
            for _ in range(rounds + 1):
                for count in THREADS:
                    torch.set_num_threads(count)
                    begin = time.perf_counter()
                    each(rig)
                    times[count].append(time.perf_counter() - begin)
            one, two = (times[count][1:] for count in THREADS)
            ratios = [b / a for a, b in zip(one, two, strict=True)]
            found[name] = {
                "two_threads_over_one": round(statistics.median(ratios), 2),
                "one_ms": [round(each * 1e3, 2) for each in one],
                "two_ms": [round(each * 1e3, 2) for each in two],
            }
    finally:
        torch.set_num_threads(before)
    return found


def _cpu(work: Work, rig: DeterminismRig) -> float:
    begin = time.process_time()
    work(rig)
    return time.process_time() - begin
