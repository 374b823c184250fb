"""The kernels themselves, beside attention that gathers, on the device."""

from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch
from kernel_cases import CASES, Case, assert_same, attend

from inference_worker.device_work import DeviceWork
from inference_worker.gathered_attention import GatheredAttention

if TYPE_CHECKING:
    from inference_worker.kernel_attention import KernelAttention
else:
    KernelAttention = pytest.importorskip(
        "inference_worker.kernel_attention",
        reason="needs a CUDA device, with whose torch Triton comes",
        exc_type=ImportError,
    ).KernelAttention

# As long as a model's are, and as wide.
LARGE = {
    "prefill on a prefix": Case(16, 8, 4, 128, [(3000, 700)]),
    "decodes": Case(16, 8, 4, 128, [(4000, 1), (17, 1), (900, 1)]),
    "wide heads and a window": Case(16, 4, 2, 256, [(1500, 200)], 512, 50.0),
    # pytorch#191937: torch's own attention, with a mask, of keys shared by heads.
    "one key more than whole tiles": Case(16, 8, 4, 128, [(1000, 89)]),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("programs", [1, 64, None], ids=["whole", "split", "as chosen"])
@pytest.mark.parametrize("case", [*CASES.values(), *LARGE.values()], ids=[*CASES, *LARGE])
def test_kernels_write_and_attend_as_gathering_does(
    case: Case, programs: int | None, dtype: str
) -> None:
    """Each case gives the same pages and the same answer, in every dtype that has whole units."""
    if case.head_dim % 8 and dtype != "float32":
        pytest.skip("a head of 40 bytes is gathered")
    asked = case._replace(dtype=dtype)
    how = partial(KernelAttention, programs=programs)
    assert_same(attend(asked, how, "cuda"), attend(asked, GatheredAttention, "cuda"))


def test_a_wait_ends_when_the_work_is_done() -> None:
    """What was queued before a wait is done after it."""
    work = DeviceWork("cuda")
    factor = torch.full((8192, 8192), 1e-4, device="cuda")
    product = factor
    for _ in range(50):
        product = product @ factor
    stream = torch.cuda.current_stream()
    assert not stream.query()
    work.wait()
    assert stream.query()
    assert product.isfinite().all()
