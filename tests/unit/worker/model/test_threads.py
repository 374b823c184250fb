"""A program computes on the cores that it may use."""

import os
from collections.abc import Iterator

import pytest
import torch

from inference_worker.model.device import threads_for, use_threads


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """Restores the number of threads of the process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_all_cores_or_the_number_given() -> None:
    """The function returns the number that it sets. The default is this process's cores."""
    assert use_threads(1) == torch.get_num_threads() == 1
    assert use_threads() == torch.get_num_threads() == len(os.sched_getaffinity(0))


def test_a_tiny_model_has_one_thread() -> None:
    """A tiny model uses one thread, unless the user sets another number."""
    assert [threads_for(name, None) for name in ("tiny", "tiny-llama", "gemma")] == [1, 1, None]
    assert [threads_for(name, 3) for name in ("tiny", "gemma")] == [3, 3]
