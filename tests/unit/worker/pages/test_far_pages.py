"""Gathered attention on pages that are tens of GiB apart.

tests/kernels/test_attention.py runs the kernels on these pages, and tests/gpu runs both in a GPU's
memory.
"""

import pytest
import torch

from device.far_pages import FAR_CASES, attend_within, far_memory, near_memory
from device.kernel_cases import Case, assert_same
from inference_worker.attention.gathered import GatheredAttention


@pytest.fixture(scope="module")
def far() -> torch.Tensor:
    """Returns memory with 36 GiB of addresses."""
    return far_memory("cpu")


@pytest.mark.parametrize("case", FAR_CASES.values(), ids=FAR_CASES)
def test_gathering_reads_and_writes_pages_far_apart(case: Case, far: torch.Tensor) -> None:
    """A step on distant pages gives the same pages and answer as on adjacent pages."""
    got = attend_within(case, GatheredAttention, far)
    assert_same(got, attend_within(case, GatheredAttention, near_memory(case, "cpu")))
