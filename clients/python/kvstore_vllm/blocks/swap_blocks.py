"""Copies by address with vLLM's own operation."""

import torch
import vllm._custom_ops as ops

from kvstore_vllm.blocks.descriptor_copier import Numbers


def swap_blocks(sources: Numbers, targets: Numbers, sizes: Numbers, *, any_order: bool) -> None:
    """Begins the copies on the current stream, in one call to the driver of CUDA 12.8 and later.

    Source: ``swap_blocks_batch`` in ``vllm/_custom_ops.py`` of 0.32, which takes int64.
    """
    ops.swap_blocks_batch(
        torch.from_numpy(sources),
        torch.from_numpy(targets),
        torch.from_numpy(sizes),
        is_src_access_order_any=any_order,
    )
