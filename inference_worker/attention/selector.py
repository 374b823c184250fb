"""Which of the two ways to attend a model takes."""

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
    """Returns what makes a step's attention: as asked, else kernels where they can run.

    On a CPU kernels run in Triton's interpreter, where ``TRITON_INTERPRET=1`` is set, and only if
    they are asked for. Raises ``ValueError`` with the reason where they were and cannot be had.
    """
    reason = why_no_kernels(layout)
    if kind == "kernel" and reason is not None:
        raise ValueError(reason)
    if kind == "gather" or reason is not None or (kind is None and device.type != "cuda"):
        return GatheredAttention
    # Triton is there on machines with a GPU only.
    from inference_worker.attention.kernel_attention import KernelAttention  # noqa: PLC0415

    return KernelAttention


def why_no_kernels(layout: PageLayout) -> str | None:
    """Returns why kernels cannot serve pages of this layout, or None where they can."""
    head_bytes = layout.token_bytes // layout.kv_head_count
    if head_bytes % HEAD_BYTES:
        return f"kernels read 16 bytes at a time, and a head of this model has {head_bytes}"
    if find_spec("triton") is None:
        return "kernels need Triton, which is not installed: torch for CUDA brings it"
    return None
