"""The size of an engine's steps and of its private memory by its device, if no setting says it."""

from typing import Final

import torch

from inference_worker.engine.scheduler import MAX_STEP_TOKENS
from inference_worker.model.model import PagedModel
from inference_worker.pages.layout import PageLayout

# The CPU needs an estimated 15 to 25 ms to launch the kernels of a step of an 8B model. 4,096
# tokens are about 65 TFLOP, so the GPU computes for longer than that. vLLM uses 8,192 on large
# GPUs, with twice the memory for activations.
CUDA_STEP_TOKENS: Final = 4096
# Neither the model nor the store can use the private arena's memory: at most a sixteenth of the
# device, and at most 4 GiB. That is 29,120 tokens of Qwen3-8B on a GPU of 64 GiB or more.
PRIVATE_SHARE: Final = 16
PRIVATE_BYTES: Final = 4 << 30


def step_tokens(device: torch.device) -> int:
    """Returns the tokens of a step: 512 on a CPU, 4,096 on a GPU."""
    return CUDA_STEP_TOKENS if device.type == "cuda" else MAX_STEP_TOKENS


def longest_sequence(model: PagedModel, page_tokens: int) -> int:
    """Returns the longest sequence in tokens that an engine accepts.

    On a CPU, whose memory is allocated when it is touched, the model's longest. On a GPU at most as
    many tokens as fit into the private arena.
    """
    if model.device.type != "cuda":
        return model.max_tokens
    device_bytes: int = torch.cuda.get_device_properties(model.device).total_memory
    return longest_within(model.max_tokens, model.layout(page_tokens), device_bytes)


def longest_within(most_tokens: int, layout: PageLayout, device_bytes: int) -> int:
    """Returns ``most_tokens``, or fewer: whole pages in the private share of a GPU's memory."""
    room = min(PRIVATE_BYTES, device_bytes // PRIVATE_SHARE)
    return min(most_tokens, max(1, room // layout.page_bytes) * layout.page_tokens)
