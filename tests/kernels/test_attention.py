"""Kernels give the results of gathered attention: here in Triton's interpreter, on NumPy.

tests/gpu has the same cases for the compiled kernels.
"""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from device.far_pages import FAR_CASES, attend_within, far_memory, near_memory
from device.kernel_cases import CASES, Case, assert_same, attend
from inference_worker.attention.gathered import GatheredAttention
from inference_worker.attention.kernel_attention import KernelAttention
from inference_worker.model.model import page_model
from inference_worker.model.tiny import TINY_MODELS


@pytest.mark.parametrize("programs", [1, 64], ids=["whole", "split"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_kernels_write_and_attend_as_gathering_does(case: Case, programs: int) -> None:
    """Each case gives the same pages and the same answer, whole and in shares."""
    how = partial(KernelAttention, programs=programs)
    assert_same(attend(case, how), attend(case, GatheredAttention))


@pytest.fixture(scope="module")
def far() -> torch.Tensor:
    """36 GiB of addresses."""
    return far_memory("cpu")


@pytest.mark.parametrize("programs", [1, 64], ids=["whole", "split"])
@pytest.mark.parametrize("case", FAR_CASES.values(), ids=FAR_CASES)
def test_pages_may_lie_far_apart(case: Case, programs: int, far: torch.Tensor) -> None:
    """More than 2^31 units of 16 bytes, which is the kernels' unit of distance."""
    got = attend_within(case, partial(KernelAttention, programs=programs), far)
    assert_same(got, attend_within(case, GatheredAttention, near_memory(case, "cpu")))


@settings(max_examples=25, deadline=None)
@given(
    page_tokens=st.integers(1, 64),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 9),
    head_dim=st.sampled_from([4, 16, 20, 64]),
    parts=st.lists(
        st.tuples(st.integers(0, 90) | st.integers(0, 1500), st.integers(1, 40)),
        min_size=1,
        max_size=3,
    ),
    window=st.none() | st.integers(1, 80),
    softcap=st.none() | st.just(1.5),
    programs=st.sampled_from([None, 1, 600]),
    seed=st.integers(0, 9),
)
def test_any_ragged_step(
    page_tokens: int,
    kv_heads: int,
    group: int,
    head_dim: int,
    parts: list[tuple[int, int]],
    window: int | None,
    softcap: float | None,
    programs: int | None,
    seed: int,
) -> None:
    """Both ways agree for any sizes."""
    case = Case(page_tokens, kv_heads, group, head_dim, parts, window, softcap, seed=seed)
    how = partial(KernelAttention, programs=programs)
    assert_same(attend(case, how), attend(case, GatheredAttention))


@pytest.mark.parametrize("name", sorted(TINY_MODELS))
def test_a_model_on_kernels_passes_its_self_check(name: str) -> None:
    """Each tiny model gives the plain forward's logits, in chunks and in single steps."""
    module: PreTrainedModel = TINY_MODELS[name]()
    assert page_model(module, attention="kernel").shape.layer_count >= 4
