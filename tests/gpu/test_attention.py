"""The kernels themselves, beside attention that gathers, on the device."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch

from device.far_pages import FAR_BYTES, FAR_CASES, GIB, attend_within, far_memory, near_memory
from device.kernel_cases import CASES, Case, assert_same, attend
from inference_worker.attention.gathered import GatheredAttention
from inference_worker.model.device import DeviceWork

if TYPE_CHECKING:
    from inference_worker.attention.kernel_attention import KernelAttention
else:
    KernelAttention = pytest.importorskip(
        "inference_worker.attention.kernel_attention",
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


@pytest.fixture(scope="module")
def far() -> Iterator[torch.Tensor]:
    """Memory of 36 GiB, freed at the end."""
    available, _ = torch.cuda.mem_get_info()
    if available < FAR_BYTES + GIB:
        pytest.skip(f"needs 37 GiB on the device, which has {available >> 30} GiB left")
    memory = [far_memory("cuda")]
    yield memory[0]
    memory.clear()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("way", ["gathered", "whole", "split"])
@pytest.mark.parametrize("case", FAR_CASES.values(), ids=FAR_CASES)
def test_pages_may_lie_far_apart(case: Case, way: str, far: torch.Tensor) -> None:
    """More than 2^31 units of 16 bytes, and more than 2^32 numbers within one extent."""
    ways = {"whole": partial(KernelAttention, programs=1)}
    ways |= {"split": partial(KernelAttention, programs=64), "gathered": GatheredAttention}
    got = attend_within(case, ways[way], far)
    assert_same(got, attend_within(case, GatheredAttention, near_memory(case, "cuda")))


def test_a_wait_ends_when_the_work_is_done() -> None:
    """Work that was queued before a wait is done after it."""
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
