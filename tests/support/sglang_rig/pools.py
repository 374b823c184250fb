"""SGLang's pools of keys and values, as far as the linker reads them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvstore_sglang.engine.device_pool import DevicePool

PAGE, LAYERS, HEADS, DIM = 8, 3, 2, 4


@dataclass
class MHATokenToKVPool:
    """The fields of SGLang's pool of keys and values."""

    k_buffer: list[torch.Tensor]
    v_buffer: list[torch.Tensor]


@dataclass
class MLATokenToKVPool:
    """The field of SGLang's pool of latents."""

    kv_buffer: list[torch.Tensor]


def plain_pool(page_count: int, device: str = "cpu") -> MHATokenToKVPool:
    """Returns a pool in which each number of each page is another one."""
    shape = (page_count * PAGE, HEADS, DIM)
    size = page_count * PAGE * HEADS * DIM
    tensors = [
        (torch.arange(size, dtype=torch.float32, device=device) + number * size).view(shape)
        for number in range(2 * LAYERS)
    ]
    return MHATokenToKVPool(tensors[:LAYERS], tensors[LAYERS:])


def page_of(pool: MHATokenToKVPool, number: int) -> torch.Tensor:
    """Returns a copy of one page: ``[layers, keys and values, tokens, heads, dim]``."""
    tokens = slice(number * PAGE, (number + 1) * PAGE)
    layers = [
        torch.stack([keys[tokens], values[tokens]])
        for keys, values in zip(pool.k_buffer, pool.v_buffer, strict=True)
    ]
    return torch.stack(layers).clone()


def slots_of(numbers: Sequence[int]) -> torch.Tensor:
    """Returns the slots of some pages, as SGLang names them."""
    tokens = [slot for each in numbers for slot in range(each * PAGE, (each + 1) * PAGE)]
    return torch.tensor(tokens, dtype=torch.int64)


def wipe(pool: MHATokenToKVPool) -> None:
    """Overwrites all pages with zeros."""
    for tensor in (*pool.k_buffer, *pool.v_buffer):
        tensor.zero_()


def device_pool(pool: MHATokenToKVPool) -> DevicePool:
    """Returns the pool as planes of pages."""
    return DevicePool(pool, PAGE)
