"""How large an engine's steps and its private memory are, unless a setting says: by its device."""

from typing import Final

import torch

from inference_worker.model import PagedModel
from inference_worker.page_layout import PageLayout
from inference_worker.scheduler import MAX_STEP_TOKENS

# A step of an 8B model launches kernels for an estimated 15 to 25 ms; 4,096 tokens of it are
# about 65 TFLOP, so the GPU computes for longer than that. vLLM takes 8,192 on large GPUs, at
# twice the memory for activations.
CUDA_STEP_TOKENS: Final = 4096
# The private arena is memory that neither the model nor the store has: a sixteenth of the device,
# 4 GiB at most. That is 29,120 tokens of Qwen3-8B on a GPU of 64 GiB or more.
PRIVATE_SHARE: Final = 16
PRIVATE_BYTES: Final = 4 << 30


def step_tokens(device: torch.device) -> int:
    """Return the tokens of a step: 512 on a CPU, 4,096 on a GPU."""
    return CUDA_STEP_TOKENS if device.type == "cuda" else MAX_STEP_TOKENS


def longest_sequence(model: PagedModel, page_tokens: int) -> int:
    """Return the longest sequence in tokens that an engine takes.

    The model's longest on a CPU, whose memory is allocated as it is touched. On a GPU no more
    than the private arena has room for.
    """
    if model.device.type != "cuda":
        return model.max_tokens
    device_bytes: int = torch.cuda.get_device_properties(model.device).total_memory
    return longest_within(model.max_tokens, model.layout(page_tokens), device_bytes)


def longest_within(most_tokens: int, layout: PageLayout, device_bytes: int) -> int:
    """Return ``most_tokens``, or fewer: whole pages in the private share of a GPU's memory."""
    room = min(PRIVATE_BYTES, device_bytes // PRIVATE_SHARE)
    return min(most_tokens, max(1, room // layout.page_bytes) * layout.page_tokens)
