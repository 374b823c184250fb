"""HiCache's host pool on a CPU engine: memory without cudaHostRegister, copies by torch.

A plugin of SGLang's, which calls ``install`` in each process before the engine starts. It acts
only if ``KVSTORE_TEST_CPU_HICACHE`` is set. SGLang's own files stay as they are.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch

VARIABLE = "KVSTORE_TEST_CPU_HICACHE"


def install() -> None:
    """Replaces the five copies of HiCache that are CUDA kernels, and the pinning of its pool."""
    if not os.environ.get(VARIABLE):
        return
    from sglang.srt.mem_cache.pool_host import base, mha  # noqa: PLC0415  # only where it is used

    # It refuses to start with less than 10 GiB of free memory, whatever the pool's size.
    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0
    made = mha.MHATokenToKVPoolHost.__init__

    def unpinned(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: ANN401  # SGLang's own
        made(self, *arguments, **{**named, "pin_memory": False})

    mha.MHATokenToKVPoolHost.__init__ = unpinned
    mha.transfer_kv_per_layer_pf_lf = load_page_first
    mha.transfer_kv_per_layer_direct_pf_lf = load_page_first_direct
    mha.transfer_kv_all_layer_direct_lf_pf = save_page_first_direct
    mha.transfer_kv_direct = copy_layers


def load_page_first(
    src_k: torch.Tensor,
    dst_k: torch.Tensor,
    src_v: torch.Tensor,
    dst_v: torch.Tensor,
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    layer_id: int,
    item_size: int,  # noqa: ARG001
    src_layout_dim: int,  # noqa: ARG001
    **_: object,
) -> None:
    """Copies a layer's tokens from ``[tokens, layers, heads, dim]`` to the device's pools."""
    dst_k[dst_indices] = src_k[src_indices, layer_id]
    dst_v[dst_indices] = src_v[src_indices, layer_id]


def load_page_first_direct(
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    layer_id: int,
    page_size: int,
) -> None:
    """Copies a layer's tokens from ``[pages, layers, page, heads, dim]`` to the device's pools."""
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        target[dst_indices] = source[src_indices // page_size, layer_id, src_indices % page_size]


def save_page_first_direct(
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Copies all layers' tokens from the device to ``[pages, layers, page, heads, dim]``."""
    layers = len(src_ptrs) // 2
    pages, tokens = dst_indices // page_size, dst_indices % page_size
    for half, target in enumerate(dst_ptrs):
        for layer in range(layers):
            target[pages, layer, tokens] = src_ptrs[half * layers + layer][src_indices]


def copy_layers(
    src_layers: Sequence[torch.Tensor],
    dst_layers: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,  # noqa: ARG001
) -> None:
    """Copies tokens between pools of which both have a tensor for each layer."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]
