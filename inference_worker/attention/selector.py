"""The choice between the two implementations of attention."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Final, Literal, TypeAlias

import torch

from inference_worker.attention.attention import StepAttention
from inference_worker.attention.gathered import GatheredAttention
from inference_worker.attention.step import Step
from inference_worker.pages.layout import PageLayout

AttentionKind: TypeAlias = Literal["gather", "kernel"]
"""``kernel`` reads pages where they lie, ``gather`` copies a layer's pages out first."""

AttentionOfStep: TypeAlias = Callable[[Step], StepAttention]

# Heads that a kernel reads are multiples of this, in bytes.
HEAD_BYTES: Final = 16


def choose_attention(
    layout: PageLayout, device: torch.device, kind: AttentionKind | None = None
) -> AttentionOfStep:
    """Returns what makes a step's attention: the requested kind, else kernels if they can run.

    On a CPU kernels run in Triton's interpreter, with ``TRITON_INTERPRET=1``, and only if they are
    requested. Raises ``ValueError`` with the reason if they are requested and cannot run.
    """
    reason = why_no_kernels(layout)
    if kind == "kernel" and reason is not None:
        raise ValueError(reason)
    if kind == "gather" or reason is not None or (kind is None and device.type != "cuda"):
        return GatheredAttention
    # Triton is installed only on machines with a GPU.
    from inference_worker.attention.kernel_attention import KernelAttention  # noqa: PLC0415

    return KernelAttention


def why_no_kernels(layout: PageLayout) -> str | None:
    """Returns why kernels cannot serve pages of this layout, or None if they can."""
    head_bytes = layout.token_bytes // layout.kv_head_count
    if head_bytes % HEAD_BYTES:
        return f"kernels read 16 bytes at a time, but a head of this model has {head_bytes}"
    if find_spec("triton") is None:
        return "kernels need Triton, which is not installed: torch for CUDA brings it"
    return None
