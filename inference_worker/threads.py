"""How many threads this process computes with."""

import os

import torch


def use_threads(count: int | None = None) -> int:
    """Set torch's threads to ``count``, else one for each core this process may run on.

    Changes the whole process; called once by a program's main.
    Returns the number set.
    """
    chosen = count or len(os.sched_getaffinity(0))
    torch.set_num_threads(chosen)
    return chosen
