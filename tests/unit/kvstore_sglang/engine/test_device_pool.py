"""SGLang's KV pool as planes of pages."""

from dataclasses import dataclass

import pytest
import torch

from kvstore_client import PagedContent
from kvstore_sglang.engine.device_pool import DevicePool, UnsupportedPool
from sglang_rig.pools import MHATokenToKVPool, MLATokenToKVPool

PAGE, PAGES, LAYERS, HEADS, DIM = 8, 5, 3, 2, 4


@dataclass
class SWAKVPool:
    """A pool with sliding windows."""


def tensors(dtype: torch.dtype = torch.float32, dim: int = DIM) -> list[torch.Tensor]:
    """Returns a tensor a layer."""
    return [torch.zeros(PAGES * PAGE, HEADS, dim, dtype=dtype) for _ in range(LAYERS)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_a_page_has_all_layers_keys_and_values(dtype: torch.dtype) -> None:
    """The layout states the shape of a page, which has the bytes of its planes."""
    pool = DevicePool(MHATokenToKVPool(tensors(dtype), tensors(dtype)), PAGE)
    layout = pool.layout
    assert layout.content == PagedContent(LAYERS, HEADS, DIM, str(dtype).removeprefix("torch."))
    planes = [plane for layer in pool.layers for plane in layer.planes]
    assert layout.page_bytes == sum(plane.shape[1] for plane in planes)
    assert {plane.shape[0] for plane in planes} == {pool.page_count} == {PAGES}


def test_planes_share_the_pool_s_memory() -> None:
    """Bytes that are written into a plane are tokens of the pool."""
    keys, values = tensors(), tensors()
    pool = DevicePool(MHATokenToKVPool(keys, values), PAGE)
    pool.layers[1].planes[1][2] = 255
    assert not any(tensor.any() for tensor in keys)
    written = [[bool(token.any()) for token in tensor] for tensor in values]
    assert written == [
        [layer == 1 and token // PAGE == 2 for token in range(40)] for layer in (0, 1, 2)
    ]


def test_a_latent_is_one_plane() -> None:
    """A pool of latents has one plane a layer."""
    pool = DevicePool(MLATokenToKVPool([torch.zeros(PAGES * PAGE, 1, 24) for _ in range(2)]), PAGE)
    assert pool.layout.content == PagedContent(2, 1, 24, "float32", kv_factor=1)


def test_slots_are_whole_pages() -> None:
    """Pages are named in the order of the slots, and slots within a page are refused."""
    pool = DevicePool(MHATokenToKVPool(tensors(), tensors()), PAGE)
    slots = torch.cat([torch.arange(24, 32), torch.arange(8, 16)])
    assert pool.page_numbers(slots) == [3, 1]
    assert pool.page_numbers(torch.arange(0)) == []
    for slots in (torch.arange(4, 12), torch.arange(8, 16).flip(0), torch.arange(8, 24)[::2]):
        with pytest.raises(ValueError, match="no whole pages of 8 tokens"):
            pool.page_numbers(slots)


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        (SWAKVPool(), "a SWAKVPool, and KvstoreLinker takes MHATokenToKVPool and MLATokenToKVPool"),
        (MHATokenToKVPool(tensors(), tensors(dim=8)), "one shape for all layers"),
        (MHATokenToKVPool(tensors(), tensors(torch.bfloat16)), "one shape for all layers"),
        (MLATokenToKVPool([torch.zeros(41, 1, 24)]), "no whole pages of 8 tokens"),
        (MLATokenToKVPool([torch.zeros(24, 1, 40).transpose(0, 2)]), "no whole pages of 8 tokens"),
    ],
)
def test_other_pools_are_refused(pool: object, message: str) -> None:
    """A pool whose tokens are no bytes side by side is refused at the start."""
    with pytest.raises(UnsupportedPool, match=message):
        DevicePool(pool, PAGE)


@pytest.mark.parametrize("scale", ["k_scale_buffer", "native_k_scale_buffer"])
def test_a_pool_with_scales_is_refused(scale: str) -> None:
    """A quantized page without its scales would be another engine's wrong answer."""
    pool = MHATokenToKVPool(tensors(), tensors())
    setattr(pool, scale, None)
    DevicePool(pool, PAGE)
    setattr(pool, scale, [torch.ones(1)])
    with pytest.raises(UnsupportedPool, match=r"scales beside its values.*--kv-cache-dtype"):
        DevicePool(pool, PAGE)


def test_an_element_type_that_the_store_does_not_know_is_refused() -> None:
    """The message names the flag to change."""
    wide = [torch.zeros(PAGES * PAGE, HEADS, DIM, dtype=torch.float64)]
    with pytest.raises(UnsupportedPool, match=r"dtype is 'float64'.*--kv-cache-dtype"):
        _ = DevicePool(MHATokenToKVPool(wide, wide), PAGE).layout
