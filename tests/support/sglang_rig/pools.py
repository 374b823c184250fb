"""SGLang's pools of keys and values, as far as the linker reads them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from kvstore_sglang.engine.model_pages import ModelPages

PAGE, LAYERS, HEADS, DIM = 8, 3, 2, 4
# The layers of full attention in a model with sliding windows, and the heads of the other three.
FULL_LAYERS, WINDOW_HEADS, WINDOW_TOKENS = (1, 4), 3, 15
WINDOW_PAGES, WINDOW_LAYERS = 2, 5
# The numbers of a layer's recurrent state: all layers fill more than one slot.
STATE_NUMBERS = 500


@dataclass
class MHATokenToKVPool:
    """The fields of SGLang's pool of keys and values."""

    k_buffer: list[torch.Tensor]
    v_buffer: list[torch.Tensor]


@dataclass
class MLATokenToKVPool:
    """The field of SGLang's pool of latents."""

    kv_buffer: list[torch.Tensor]


@dataclass
class SWAKVPool:
    """The fields of SGLang's pool with sliding windows.

    ``layers_mapping`` says of each layer of the model its number in one of the pools, and whether
    that is the pool of windows.
    """

    full_kv_pool: MHATokenToKVPool
    swa_kv_pool: MHATokenToKVPool
    layers_mapping: dict[int, tuple[int, bool]] = field(default_factory=dict)

    @property
    def full_layer_nums(self) -> int:
        """The number of layers of full attention."""
        return sum(not slides for _, slides in self.layers_mapping.values())


@dataclass
class HybridLinearKVPool:
    """The fields of SGLang's pool of keys and values beside recurrent states."""

    full_kv_pool: MHATokenToKVPool
    full_attention_layer_id_mapping: dict[int, int]


@dataclass
class HybridReqToTokenPool:
    """The fields of SGLang's pool of requests, which has their states."""

    mamba_pool: Any
    mamba_map: dict[int, int]
    mamba_ckpt_pool: Any = None
    short_conv_pool: Any = field(default_factory=lambda: SimpleNamespace(enabled=False))
    ngram_pool: Any = field(default_factory=lambda: SimpleNamespace(enabled=False))
    counter: Any = None

    def register_layer_transfer_counter(self, counter: Any) -> None:  # noqa: ANN401
        """Notes the counter that a forward waits for."""
        self.counter = counter


def state_pools(page_count: int) -> tuple[HybridLinearKVPool, HybridReqToTokenPool]:
    """Returns pools of two layers of full attention and three with states, ``page_count`` each."""
    linear = [layer for layer in range(WINDOW_LAYERS) if layer not in FULL_LAYERS]
    full = {layer: number for number, layer in enumerate(FULL_LAYERS)}
    size = len(linear) * page_count * STATE_NUMBERS
    temporal = torch.arange(size, dtype=torch.float32).view(len(linear), page_count, 2, -1)
    conv = torch.arange(len(linear) * page_count * 6).view(len(linear), page_count, 3, 2).bfloat16()
    # A model without such a state keeps an empty tensor.
    nothing = torch.empty(len(linear), page_count, 0)
    states = SimpleNamespace(temporal=temporal, conv=[conv, nothing])
    requests = HybridReqToTokenPool(
        SimpleNamespace(mamba_cache=states), {layer: n for n, layer in enumerate(linear)}
    )
    pool = HybridLinearKVPool(_numbered(page_count, HEADS, len(FULL_LAYERS)), full)
    return pool, requests


@dataclass
class SWATokenToKVPoolAllocator:
    """SGLang's allocator of such a pool."""

    kvcache: Any

    def get_kvcache(self) -> Any:  # noqa: ANN401
        """Returns the pool."""
        return self.kvcache


def window_pool(page_count: int) -> SWAKVPool:
    """Returns a pool of two layers of full attention and three of windows, each with numbers."""
    counts = {False: 0, True: 0}
    mapping = {}
    for layer in range(WINDOW_LAYERS):
        slides = layer not in FULL_LAYERS
        mapping[layer] = counts[slides], slides
        counts[slides] += 1
    return SWAKVPool(
        _numbered(page_count, HEADS, counts[False]),
        _numbered(page_count, WINDOW_HEADS, counts[True], start=1_000_000),
        mapping,
    )


def _numbered(page_count: int, heads: int, layers: int, start: int = 0) -> MHATokenToKVPool:
    size = page_count * PAGE * heads * DIM
    tensors = [
        torch.arange(start + n * size, start + (n + 1) * size, dtype=torch.float32).view(
            page_count * PAGE, heads, DIM
        )
        for n in range(2 * layers)
    ]
    return MHATokenToKVPool(tensors[:layers], tensors[layers:])


def params_of(pool: Any, **changes: object) -> Any:  # noqa: ANN401
    """Returns SGLang's parameters of a cache over a pool, as far as pages are read of them."""
    allocator = SWATokenToKVPoolAllocator(pool)
    params = {
        "token_to_kv_pool_allocator": allocator,
        "page_size": PAGE,
        "swa_retain_window": WINDOW_TOKENS,
        "swa_gates_prefix_match": True,
        "decoder_swa_bounded_replay": False,
    }
    return SimpleNamespace(**{**params, **changes})


def window_pages(pool: SWAKVPool) -> ModelPages:
    """Returns the pages of a pool with sliding windows."""
    return ModelPages.read(params_of(pool), ["FULL", "SWA"])


def plain_pages(pool: MHATokenToKVPool) -> ModelPages:
    """Returns the pages of a plain pool."""
    return ModelPages.read(params_of(pool), ["FULL"])


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
