"""Copies of whole bytes from one tensor into another of the same shape."""

import numpy as np
import torch

# Copied as the widest type that the sizes allow: eight bytes at a time, or one.
WIDE = 8


def copy_with_team(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy with all threads that torch has for its caller; on a device on the current stream."""
    _widened(target).copy_(_widened(source))


def copy_alone(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy in the calling thread, without the interpreter; for memory of the CPU.

    For a thread beside the one that computes. Torch would give it an OpenMP team of its own,
    which stays as long as the thread does. There are more threads than cores then, by libgomp's
    count, and so every team, the engine's too, sleeps where it would have spun (libgomp's
    ``gomp_throttled_spin_count_var``).
    """
    np.copyto(_widened(target).numpy(), _widened(source).numpy())


def _widened(part: torch.Tensor) -> torch.Tensor:
    """Return the same bytes as wider elements, where all strides and the size divide."""
    if part.shape[-1] % WIDE or part.storage_offset() % WIDE:
        return part
    if any(stride % WIDE for stride in part.stride()[:-1]):
        return part
    return part.view(torch.int64)
