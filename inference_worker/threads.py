"""How many threads this process computes with."""

import os

import torch

from inference_worker.model_source import TINY


def threads_for(model: str, count: int | None) -> int | None:
    """Say how many threads a model computes with: ``count`` if given, one for a tiny model.

    Threads that wait for each other cost a small model more than they compute: 134 s instead of
    10 s for the tests of tiny models, with two threads each on two busy cores.
    """
    return 1 if count is None and model.startswith(TINY) else count


def use_threads(count: int | None = None) -> int:
    """Set torch's threads to ``count``, else one for each core this process may run on.

    Changes the whole process; called once by a program's main.
    Returns the number set.
    """
    chosen = count or len(os.sched_getaffinity(0))
    torch.set_num_threads(chosen)
    return chosen
